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

  const std::string templates = source_dir() + "/tests/text/templates/";
  const Json llama = json_of(with({"-p", talk, "--chat-template", templates + "llama-2.jinja"}));
  EXPECT_EQ(llama["template"], "llama-2");
  EXPECT_EQ(llama["prompt"], "<s>[INST] Hi <|end|> [/INST]");
  const Finished unknown = run_program(with({"-p", talk, "--chat-template", templates + "unknown-upper.jinja"}));
  EXPECT_EQ(unknown.exit_code, 0);
  EXPECT_EQ(unknown.error_lines(), 1);
  EXPECT_NE(unknown.err.find("not recognised"), std::string::npos) << unknown.err;
  EXPECT_NE(unknown.err.find("'markers'"), std::string::npos) << unknown.err;
}

TEST(Chats, TokenizeRefusesWhatIsNoConversation) {
  const std::string templates = source_dir() + "/tests/text/templates/";
  const Folder folder;
  const std::string empty = folder.make("empty", "");
  for (const auto& [more, why] : std::vector<std::pair<Arguments, std::string>>{
           {{"-p", "[1"}, "not valid JSON at byte 3"},
           {{"-p", "\xff"}, "not valid JSON"},
           {{"-p", "{}"}, "no JSON array"},
           {{"-p", "[]"}, "no message"},
           {{"-p", "[1]"}, "message 1"},
           {{"-p", R"([{"role": "user", "content": "x"}, {"role": "user"}])"}, "message 2"},
           {{"-p", R"([{"role": "user", "content": null}])"}, "message 1"},
           {{"-p", R"([{"role": "tool", "content": "x"}])"}, "\"tool\""},
           {{"-p", R"([{"role": "system", "content": "x"}])", "--chat-template", templates + "gemma.jinja"},
            "no place"},
           {{"-p", "[]", "--chat-template", templates + "missing"}, "missing"},
           {{"-p", "[]", "--chat-template", empty}, "empty"},
           {{"-p", "[]", "--special"}, "--special"}}) {
    SCOPED_TRACE(::testing::PrintToString(more));
    Arguments arguments = {"tokenize", "-m", model_path(), "--chat"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished done = run_program(arguments);
    EXPECT_EQ(done.exit_code, 2);
    EXPECT_EQ(done.out, "");
    EXPECT_EQ(done.error_lines(), 1) << done.err;
    EXPECT_NE(done.err.find(why), std::string::npos) << done.err;
  }
  EXPECT_EQ(run_program({"tokenize", "-m", model_path(), "--no-answer", "-p", "x"}).exit_code, 2);
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
  const std::string templates = source_dir() + "/tests/text/templates/";
  EXPECT_GT(seen({"--chat", "--chat-template", templates + "llama-3-dated.jinja"}), chat);
  const Finished unknown =
      run_model({"--chat", "-p", "Hello", "-n", "1", "--chat-template", templates + "unknown-upper.jinja"});
  EXPECT_EQ(unknown.exit_code, 0);
  EXPECT_NE(unknown.err.find("not recognised"), std::string::npos) << unknown.err;
  const Finished lost = run_model({"-p", "Hello", "--system", "Be brief"});
  EXPECT_EQ(lost.exit_code, 2);
  EXPECT_NE(lost.err.find("--chat"), std::string::npos) << lost.err;
}

}  // namespace
}  // namespace kvasir::test
