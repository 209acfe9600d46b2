// kvasir run -f ... -p ...: a question about documents, as one prompt or one message.
#include "cli/program.h"
#include "replay/trace_file.h"

namespace kvasir::test {
namespace {

// The token count and the greedy answer: both are those of the one text that the parts make.
void expect_same(const Arguments& parts, const Arguments& whole) {
  const Arguments rest = {"-n", "12", "--temp", "0", "--ignore-eos"};
  Json json[2];
  for (const int i : {0, 1}) {
    Arguments arguments = i == 0 ? parts : whole;
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    json[i] = run_json(arguments);
  }
  EXPECT_EQ(json[0]["prompt_tokens"], json[1]["prompt_tokens"]);
  EXPECT_EQ(json[0]["text"], json[1]["text"]);
}

TEST(Documents, StandInFrontOfTheQuestionOneBlankLineApart) {
  const Folder folder;
  const std::string one = folder.make("one", "The lamp is red.\r\n\n\n");
  const std::string two = folder.make("two", "\nThe door is blue.");
  const std::string question = "What is red?";
  expect_same({"-f", one, "-p", question}, {"-p", "The lamp is red.\n\n" + question});
  expect_same({"-p", question, "-f", two, "-f", one}, {"-p", "\nThe door is blue.\n\nThe lamp is red.\n\n" + question});
  expect_same({"-f", one, "-f", two}, {"-p", "The lamp is red.\n\n\nThe door is blue."});
  expect_same({"-f", one}, {"-p", "The lamp is red.\r\n\n\n"});
}

TEST(Documents, AreOneMessageWithTheQuestion) {
  const Folder folder;
  const std::string one = folder.make("one", "The lamp is red.\n");
  const std::string two = folder.make("two", "The door is blue.\n");
  expect_same({"--chat", "-f", one, "-f", two, "-p", "What is red?"},
              {"--chat", "-p", "The lamp is red.\n\nThe door is blue.\n\nWhat is red?"});
  expect_same({"--chat", "-f", one}, {"--chat", "-p", "The lamp is red.\n"});
}

TEST(Documents, OneMayBeStandardInput) {
  const Folder folder;
  const std::string one = folder.make("one", "The lamp is red.");
  const Json json = run_json({"-f", one, "-f", "-", "-p", "Why?", "-n", "1"}, {.input = "The door is blue."});
  const Json whole = run_json({"-p", "The lamp is red.\n\nThe door is blue.\n\nWhy?", "-n", "1"});
  EXPECT_EQ(json["prompt_tokens"], whole["prompt_tokens"]);
}

TEST(Documents, WhatIsForgottenOfThemIsSaid) {
  const Folder folder;
  const std::string text = folder.make("long", some_text(400));
  const Finished bounded = run_model({"-f", text, "-p", "Why?", "-n", "1", "--kv", "streaming:sinks=4,window=60"});
  EXPECT_NE(bounded.err.find("are forgotten (streaming:sinks=4,window=60): what an answer says of them is made up"),
            std::string::npos)
      << bounded.err;
  EXPECT_NE(bounded.err.find("kvasir: tokens 4 to "), std::string::npos) << bounded.err;
  const Finished demoted =
      run_model({"-f", text, "-p", "Why?", "-n", "1", "--kv", "streaming:sinks=4,window=60", "--demote", "q4"});
  EXPECT_NE(demoted.err.find("are demoted (streaming:sinks=4,window=60@demote=q4): each token reads again"),
            std::string::npos)
      << demoted.err;
  EXPECT_EQ(demoted.err.find("made up"), std::string::npos) << demoted.err;
  for (const char* policy : {"snapkv:budget=64", "cake:budget=64", "h2o:budget=64,recent=32", "tova:budget=64"})
    EXPECT_NE(run_model({"-f", text, "-p", "Why?", "-n", "1", "--kv", policy})
                  .err.find(": what an answer says of them may be made up; --kv full keeps everything\n"),
              std::string::npos)
        << policy;
  const Finished whole = run_model({"-f", text, "-p", "Why?", "-n", "1", "--kv", "full"});
  EXPECT_EQ(whole.err.find("forgotten"), std::string::npos) << whole.err;
}

// Said before the text is read: how long it is, what will be kept, and what can be done.
TEST(Documents, WhatWillBeForgottenIsSaidFirst) {
  const Folder folder;
  const std::string text = folder.make("long", some_text(400));
  const auto told = [&](const char* policy) {
    const std::string err = run_model({"-f", text, "-p", "Why?", "-n", "1", "--kv", policy}).err;
    EXPECT_EQ(err.find("it begins to"), std::string::npos) << "told twice: " << err;
    return err.substr(0, err.find('\n'));
  };
  const std::string range = told("streaming:sinks=4,window=60");
  EXPECT_TRUE(range.starts_with("kvasir: 40")) << range;
  EXPECT_NE(range.find(" to read; 64 of "), std::string::npos) << range;
  EXPECT_NE(range.find("the middle will be forgotten; --kv full keeps everything"), std::string::npos) << range;
  EXPECT_NE(told("snapkv:budget=64").find("; 64 of "), std::string::npos);
  EXPECT_NE(told("snapkv:budget=64").find("the others will be forgotten"), std::string::npos);
  EXPECT_NE(told("streaming:cap=64@demote=q4").find("the others demoted"), std::string::npos);
  // What is never dropped is kept even beyond a budget that is a share.
  EXPECT_NE(told("snapkv:budget=1%").find("; 16 of "), std::string::npos);
  EXPECT_NE(told("h2o:budget=1%,recent=40,sinks=2").find("; 42 of "), std::string::npos);
  for (const char* policy : {"full", "streaming:cap=2000", "h2o:budget=1%"})
    EXPECT_EQ(told(policy).find(" to read"), std::string::npos);
}

// What is recommended can be done: not `full` where the memory does not hold it.
TEST(Documents, TheRemedyFitsTheMemory) {
  const Folder folder;
  const std::string text = folder.make("long", some_text(1500));
  const auto told = [&](const Arguments& how) {
    Arguments all = {"-f", text, "-p", "Why?", "-n", "1"};
    all.insert(all.end(), how.begin(), how.end());
    const std::string err = run_model(all).err;
    return err.substr(0, err.find('\n'));
  };
  EXPECT_NE(told({"--kv", "streaming:cap=64"}).find("--kv full keeps everything"), std::string::npos);
  const std::string tight = told({"--kv", "streaming:cap=64", "--kv-memory", "1MiB"});
  EXPECT_NE(tight.find("will be forgotten; --parts"), std::string::npos) << tight;
  EXPECT_NE(told({"--kv", "h2o:budget=128+streaming:cap=64"}).find("; 64 of "), std::string::npos) << "the smaller";
}

// Part by part, and then all answers together; each part is as long as the cache allows.
TEST(Documents, PartsOfALongTextAreAskedInTurn) {
  const Folder folder;
  const std::string text = folder.make("long", some_text(900));
  const Finished done = run_model({"-f", text, "-p", "Why?", "--parts", "-n", "8", "--temp", "0", "-c", "400"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  for (const char* part : {"--- part 1 of 3\n", "--- part 2 of 3\n", "--- part 3 of 3\n", "--- all parts\n"})
    EXPECT_NE(done.out.find(part), std::string::npos) << done.out;
  EXPECT_EQ(done.out.find("part 4"), std::string::npos);
  EXPECT_EQ(done.err.find("forgotten"), std::string::npos) << done.err;
  EXPECT_NE(done.err.find("kvasir: 3 parts of up to "), std::string::npos) << done.err;
  const Finished whole = run_model({"-f", text, "-p", "Why?", "--parts", "-n", "8", "--temp", "0"});
  EXPECT_EQ(whole.out.find("---"), std::string::npos) << "it fits: one answer";
  EXPECT_EQ(run_model({"-f", text, "-p", "Why?", "--parts", "-n", "380", "-c", "400"}).exit_code, 2);
  // As the memory allows: under `full` a part is what fits.
  const Finished tight =
      run_model({"-f", text, "-p", "Why?", "--parts", "-n", "8", "--temp", "0", "--kv", "full", "--kv-memory", "1MiB"});
  EXPECT_EQ(tight.exit_code, 0) << tight.err;
  EXPECT_NE(tight.out.find("--- part 2 of "), std::string::npos) << tight.out;
  EXPECT_EQ(tight.err.find("forgotten"), std::string::npos) << tight.err;
}

// Input that is not read is not dropped without a word.
TEST(Documents, InputBesideAPromptIsNoted) {
  const std::string note = "kvasir: standard input is not read, as -p is given; add '-f -' to put it in front\n";
  EXPECT_NE(run_model({"-p", "Why?", "-n", "1"}, {.input = "The lamp is red."}).err.find(note), std::string::npos);
  EXPECT_NE(run_model({"-p", "Why?", "-n", "1", "--chat"}, {.input = "The lamp is red."}).err.find(note),
            std::string::npos);
  EXPECT_EQ(run_model({"-p", "Why?", "-n", "1"}).err.find("standard input"), std::string::npos);
  EXPECT_EQ(run_model({"-f", "-", "-p", "Why?", "-n", "1"}, {.input = "The lamp is red."}).err.find("standard input"),
            std::string::npos);
}

// As a single file that is too large. The third is not read.
TEST(Documents, AreBoundedTogether) {
  const Folder folder;
  const std::string one = folder.make("one", std::string(std::size_t{140} << 20, 'a'));
  expect_refused(run_model({"-f", one, "-f", one, "-f", folder.path("none")}), 1,
                 "the documents are larger together than the 268435456 bytes accepted here; split them");
}

TEST(Documents, WhatIsNoTextIsNamed) {
  const Folder folder;
  using namespace std::string_literals;
  const std::pair<std::string, std::string> kinds[] = {
      {"\xff\xfeH\0i\0"s, " is in UTF-16, not UTF-8; convert it with `iconv -f UTF-16 -t UTF-8`"},
      {"\xfe\xff\0H\0i"s, " is in UTF-16, not UTF-8; convert it with `iconv -f UTF-16 -t UTF-8`"},
      {"H\0i\0"s, " is no text: byte 1 is NUL; convert it to UTF-8 if it is text in UTF-16 or UTF-32"},
      {"GGUF\3\0\0\0"s, " is a GGUF file, not a text; the model is given by -m"},
      {"KVASIRS2\1"s, " is a session file, not a text; --load continues it"},
      {"%PDF-1.7\n"s, " is a PDF, not a text; convert it first, for example with `pdftotext`"},
      {"PK\3\4"s, " is compressed (zip), not a text; unpack it with `unzip`"},
      {"\x1f\x8b\b\0"s, " is compressed (gzip), not a text; unpack it with `gunzip`"},
      {" \n\xc2\xa0\n"s, " is blank; give a file with text"}};
  for (const auto& [content, message] : kinds) {
    const std::string file = folder.make("file", content);
    expect_refused(run_model({"-f", file, "-p", "Why?"}), 2, "'" + file + "'" + message);
  }
}

TEST(Documents, OnlySessionFilesAreReplaced) {
  const Folder folder;
  const std::string notes = folder.make("notes", "Buy milk.");
  expect_refused(run_model({"-p", "Why?", "-n", "1", "--save", notes}), 2,
                 "'" + notes + "' exists and is not a session file; give another name, or remove it");
  EXPECT_EQ(folder.content("notes"), "Buy milk.");
  const std::string session = folder.make("session", "");
  for (int time = 0; time < 2; ++time)
    EXPECT_EQ(run_model({"-p", "Why?", "-n", "1", "--save", session}).exit_code, 0) << time;
  EXPECT_TRUE(folder.content("session").starts_with("KVASIRS"));
}

TEST(Documents, AreNotReplacedByTheSession) {
  const Folder folder;
  const std::string one = folder.make("one", "The lamp is red.");
  const std::string two = folder.make("two", "The door is blue.");
  expect_refused(run_model({"-f", one, "-f", two, "-p", "Why?", "--save", two}), 2,
                 "'" + two + "' is the file that is read, and would be overwritten; give another name");
}

}  // namespace
}  // namespace kvasir::test
