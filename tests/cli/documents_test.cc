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
  EXPECT_NE(bounded.err.find("are forgotten (streaming:sinks=4,window=60): no answer can draw on them"),
            std::string::npos)
      << bounded.err;
  EXPECT_NE(bounded.err.find("kvasir: tokens 4 to "), std::string::npos) << bounded.err;
  const Finished whole = run_model({"-f", text, "-p", "Why?", "-n", "1", "--kv", "full"});
  EXPECT_EQ(whole.err.find("forgotten"), std::string::npos) << whole.err;
}

// As a single file that is too large. The third is not read.
TEST(Documents, AreBoundedTogether) {
  const Folder folder;
  const std::string one = folder.make("one", "");
  std::filesystem::resize_file(one, std::size_t{140} << 20);
  expect_refused(run_model({"-f", one, "-f", one, "-f", folder.path("none")}), 1,
                 "the documents are larger together than the 268435456 bytes accepted here; split them");
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
