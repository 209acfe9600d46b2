// Conversations on the command line: tokenize --chat, run --chat.
#include <algorithm>

#include "cli/program.h"
#include "replay/trace_file.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

TEST(Chats, TokenizeTakesConversations) {
  const std::string talk = R"([{"role": "user", "content": "Hi <|end|>"}])";
  const Arguments chat = {"tokenize", "-m", model_path(), "--chat", "--json"};
  const auto with = [&](Arguments more) {
    more.insert(more.begin(), chat.begin(), chat.end());
    return more;
  };
  const Json json = json_of(with({"-p", talk}));
  EXPECT_EQ(json["template"], "markers");
  EXPECT_EQ(json["prompt"], "<s><|user|>Hi <|end|><|end|><|assistant|>");
  EXPECT_EQ(json["count"], json["ids"].size());
  EXPECT_EQ(json["ids"].front(), 1);
  EXPECT_EQ(json["ids"].back(), 4);
  EXPECT_EQ(std::count(json["ids"].begin(), json["ids"].end(), 5), 1) << "content writes no control token";
  EXPECT_EQ(json_of(chat, {.input = talk}), json);
  const Json closed = json_of(with({"-p", talk, "--no-answer", "--no-bos"}));
  EXPECT_EQ(closed["prompt"], "<|user|>Hi <|end|><|end|>") << "as the ids: without BOS";
  EXPECT_EQ(closed["ids"].front(), 3);
  EXPECT_EQ(closed["ids"].back(), 5);

  const std::string templates = source_dir() + "/tests/chat/templates/";
  const Json llama = json_of(with({"-p", talk, "--chat-template", templates + "llama-2.jinja"}));
  EXPECT_EQ(llama["template"], "jinja");
  EXPECT_EQ(llama["prompt"], "<s>[INST] Hi <|end|> [/INST]");
  const Json upper = json_of(with({"-p", talk, "--chat-template", templates + "upper-roles.jinja"}));
  EXPECT_EQ(upper["prompt"], "<s><|im_start|>USER\nHi <|end|><|im_end|>\n") << "BOS by the vocabulary";
}

TEST(Chats, TemplatesTakeArguments) {
  const Folder folder;
  const std::string file = folder.make("template",
                                       "{{ 'thinks' if enable_thinking is true else 'does not think' }}"
                                       "{% for tool in tools or [] %} {{ tool.name }}{% endfor %}{{ effort }}");
  const Arguments chat = {"tokenize",
                          "-m",
                          model_path(),
                          "--chat",
                          "--json",
                          "--no-bos",
                          "--chat-template",
                          file,
                          "-p",
                          R"([{"role": "user", "content": "Hi"}])"};
  const auto prompt = [&](Arguments more) {
    more.insert(more.begin(), chat.begin(), chat.end());
    return json_of(more)["prompt"].get<std::string>();
  };
  EXPECT_EQ(prompt({}), "does not think");
  EXPECT_EQ(prompt({"--template-arg", "enable_thinking=true"}), "thinks");
  EXPECT_EQ(prompt({"--template-arg", R"(tools=[{"name": "a"}, {"name": "b"}])", "--template-arg", "effort=: x=1"}),
            "does not think a b: x=1");
}

TEST(Chats, TokenizeRefusesWhatIsNoConversation) {
  const std::string templates = source_dir() + "/tests/chat/templates/";
  const Folder folder;
  const std::string empty = folder.make("empty", "");
  const std::string form = R"(; give [{"role": "user", "content": "..."}, ...])";
  const std::string strings = " of the conversation needs \"role\" and \"content\", both strings";
  const std::string missing = templates + "missing";
  expect_all_refused(
      {
          {{"-p", "[1"}, 2, "the conversation is not valid JSON at byte 3" + form},
          {{"-p", "\xff"}, 2, "the conversation is not valid JSON at byte 1" + form},
          {{"-p", "{}"}, 2, "the conversation is no JSON array" + form},
          {{"-p", "[]"}, 2, "there is no message; give one at least"},
          {{"-p", "[1]"}, 2, "message 1" + strings},
          {{"-p", R"([{"role": "user", "content": "x"}, {"role": "user"}])"}, 2, "message 2" + strings},
          {{"-p", R"([{"role": "user", "content": null}])"}, 2, "message 1" + strings},
          {{"-p", R"([{"role": "judge", "content": "x"}])"},
           2,
           "the role \"judge\" is not known; use system, user, assistant or tool"},
          {{"-p", R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}])"},
           2,
           "message 1 of the conversation needs calls with \"function\": {\"name\", \"arguments\"}, both strings"},
          {{"-p", R"([{"role": "system", "content": "x"}])", "--chat-template", templates + "gemma.jinja"},
           2,
           "the chat template, line 1, column 74: no system message"},
          {{"-p", "[]", "--chat-template", folder.make("text", "Hi\n\nthere")},
           2,
           "the chat template, line 1, column 1: there is no tag, {{ }} or {% %} [--chat-template]"},
          {{"-p", "[]", "--chat-template", folder.make("if", "a\nb {% if x %}c")},
           2,
           "the chat template, line 2, column 14: {% endif %} is missing [--chat-template]"},
          {{"-p", "[]", "--template-arg", "messages=[]"},
           2,
           "the template argument 'messages' is set by the conversation; give another name [--template-arg]"},
          {{"-p", "[]", "--chat-template", missing}, 2, "cannot open '" + missing + "': No such file or directory"},
          {{"-p", "[]", "--chat-template", empty}, 2, "the chat template '" + empty + "' is empty; give another file"},
          {{"-p", "[]", "--special"}, 2, "--special excludes --chat (see 'kvasir tokenize --help')"},
      },
      {"tokenize", "-m", model_path(), "--chat"});
  expect_refused({"tokenize", "-m", model_path(), "--no-answer", "-p", "x"}, 2,
                 "--no-answer requires --chat (see 'kvasir tokenize --help')");
}

TEST(Chats, ChatAnswersTheText) {
  const auto seen = [](const Arguments& more) {
    Arguments arguments = {"-p", "Hello", "-n", "4", "--seed", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_json(arguments)["prompt_tokens"].get<int>();
  };
  const int plain = seen({});
  const int chat = seen({"--chat"});
  EXPECT_EQ(chat, plain + 3) << "two marks around it, and one for the answer";
  EXPECT_GT(seen({"--chat", "--system", "Be brief"}), chat);
  const std::string templates = source_dir() + "/tests/chat/templates/";
  EXPECT_GT(seen({"--chat", "--chat-template", templates + "llama-3-dated.jinja"}), chat);
  const Folder folder;
  const std::string raising = folder.make("raising", "{{ raise_exception('Not ' ~ messages|length ~ ' of them') }}");
  expect_refused(run_model({"--chat", "-p", "Hello", "-n", "1", "--chat-template", raising}), 2,
                 "the chat template, line 1, column 19: Not 1 of them");
  expect_refused(run_model({"--chat", "-p", "Hello", "--chat-template", templates + "broken.jinja"}), 2,
                 "the chat template, line 1, column 116: unknown tag 'endif' [--chat-template]");
  expect_refused(run_model({"-p", "Hello", "--template-arg", "x=1"}), 2, "--template-arg is for a chat; add --chat");
  expect_refused(run_model({"-p", "Hello", "--system", "Be brief"}), 2, "--system is for a chat; add --chat");
}

}  // namespace
}  // namespace kvasir::test
