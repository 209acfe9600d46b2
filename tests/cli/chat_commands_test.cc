// The commands of a chat: /read, /save, /load, /clear, /again, /kv, /help, /bye.
#include <filesystem>

#include "cli/terminal.h"
#include "replay/trace_file.h"

namespace kvasir::test {
namespace {

class ChatCommands : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_terminals()) GTEST_SKIP() << "needs pseudo-terminals (mount devpts on /dev/pts)";
  }

  // A chat on a terminal without an editor, whose output is plain.
  static Arguments arguments(const Arguments& more = {}) {
    Arguments all = run_arguments({"-n", "12", "--ignore-eos", "--seed", "1"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static TerminalSettings plain() { return {.term = "dumb", .history = "", .home = "", .program = ""}; }

  // Drops the note that an answer was cut by -n, which most answers here are.
  static std::string without_cut(std::string shown) {
    static const std::string kCut = "\r\nkvasir: cut after 12 tokens; /set tokens N allows more";
    if (shown.ends_with(kCut)) shown.resize(shown.size() - kCut.size());
    return shown;
  }

  // Types a line and returns what is shown up to the next prompt, but that an answer was cut.
  static std::string reply(Terminal& terminal, const std::string& line) {
    terminal.type(line + "\n");
    EXPECT_TRUE(terminal.await(line + "\r\n")) << terminal.seen();
    const std::size_t before = terminal.seen().size() - terminal.rest().size();
    EXPECT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
    const std::size_t after = terminal.seen().size() - terminal.rest().size();
    return without_cut(terminal.seen().substr(before, after - before - 4));
  }
  static void start(Terminal& terminal) { ASSERT_TRUE(terminal.await("> ")) << terminal.seen(); }

  // What one answer to the message is, as the terminal shows it.
  static std::string answer_to(const std::string& message, const Arguments& how) {
    Arguments all = {"--chat", "-p", message, "--ignore-eos"};
    all.insert(all.end(), how.begin(), how.end());
    std::string text = run_json(all)["text"];
    for (std::size_t i = 0; (i = text.find('\n', i)) != std::string::npos; i += 2) text.insert(i, "\r");
    return text;
  }
  static std::string greedy_answer_to(const std::string& message) {
    return answer_to(message, {"-n", "12", "--temp", "0"});
  }
  static std::string answer_by_seed(const std::string& seed) {
    return answer_to("Hello", {"-n", "12", "--seed", seed});
  }

  Folder folder_;
};

TEST_F(ChatCommands, ReadPutsAFileInFrontOfTheNextMessage) {
  const std::string lamp = folder_.make("lamp", "The lamp is red.\n"),
                    door = folder_.make("a door", "The door is blue.");
  Terminal terminal(arguments({"--temp", "0"}), plain());
  start(terminal);
  EXPECT_EQ(reply(terminal, "/read " + lamp),
            "kvasir: 17 B of '" + lamp + "', 7 tokens, go in front of your next message");
  EXPECT_NE(reply(terminal, "/read  " + door + " ").find("17 B"), std::string::npos);
  EXPECT_NE(reply(terminal, "/kv").find("35 B in front of your next message"), std::string::npos) << terminal.seen();
  const std::string expected = greedy_answer_to("The lamp is red.\n\nThe door is blue.\n\nWhat is red?");
  EXPECT_EQ(reply(terminal, "What is red?"), expected) << terminal.seen();
  EXPECT_EQ(reply(terminal, "/kv").find("in front of"), std::string::npos) << "it goes once: " << terminal.seen();
}

TEST_F(ChatCommands, FilesThatCannotBeReadEndNothing) {
  const std::string empty = folder_.make("empty", ""), binary = folder_.make("binary", "caf\xe9"),
                    missing = folder_.path("missing");
  Terminal terminal(arguments(), plain());
  start(terminal);
  EXPECT_EQ(reply(terminal, "/read " + missing), "kvasir: cannot open '" + missing + "': No such file or directory");
  EXPECT_EQ(reply(terminal, "/read " + empty), "kvasir: '" + empty + "' is empty; give a file with text");
  EXPECT_NE(reply(terminal, "/read " + binary).find("'" + binary + "' is not valid UTF-8 at byte 3"),
            std::string::npos);
  EXPECT_EQ(reply(terminal, "/read"), "kvasir: /read needs the name of a file: /read FILE");
  EXPECT_EQ(reply(terminal, "/load " + missing), "kvasir: cannot open '" + missing + "': No such file or directory");
  EXPECT_NE(reply(terminal, "/load " + binary).find("this is not a session file of Kvasir"), std::string::npos);
  EXPECT_NE(reply(terminal, "/save " + folder_.path()).find("is not a regular file"), std::string::npos);
  EXPECT_NE(reply(terminal, "/save " + model_path()).find("would be overwritten"), std::string::npos);
  terminal.type("/bye\n");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

TEST_F(ChatCommands, DocumentsOfTheCommandLineGoBeforeTheFirstQuestion) {
  const std::string lamp = folder_.make("lamp", "The lamp is red.\n");
  Terminal terminal(arguments({"--temp", "0", "--chat", "-f", lamp}), plain());
  ASSERT_TRUE(terminal.await("17 B of documents go in front of your first message")) << terminal.seen();
  start(terminal);
  EXPECT_EQ(reply(terminal, "What is red?"), greedy_answer_to("The lamp is red.\n\nWhat is red?"));
}

TEST_F(ChatCommands, AgainDrawsWithTheNextSeed) {
  Terminal terminal(arguments(), plain());
  start(terminal);
  EXPECT_EQ(reply(terminal, "/again"), "kvasir: there is no answer yet");
  const std::string first = answer_by_seed("1"), second = answer_by_seed("2");
  ASSERT_NE(first, second);
  EXPECT_EQ(reply(terminal, "Hello"), first);
  const std::string seen = reply(terminal, "/kv");
  EXPECT_EQ(reply(terminal, "/again"), second);
  EXPECT_EQ(reply(terminal, "/kv"), seen) << "the first answer is gone";
  EXPECT_EQ(reply(terminal, "/again"), answer_by_seed("3"));
  Terminal greedy(arguments({"--temp", "0"}), plain());
  start(greedy);
  reply(greedy, "Hello");
  EXPECT_EQ(reply(greedy, "/again"), "kvasir: with --temp 0 the answer would be the same");
}

// The state before the answer shares the cache's memory. Where there is none for both, the answer goes on without it.
TEST_F(ChatCommands, AgainTakesNoMemoryFromTheAnswer) {
  const Arguments tight = {"--kv", "full", "--kv-memory", "300KiB", "--seed", "1", "-n", "-1"};
  Arguments endless = tight;
  endless.emplace_back("--ignore-eos");
  Terminal terminal(run_arguments(endless), plain());
  start(terminal);
  const std::string answer = answer_to("Hello", tight);
  EXPECT_GT(answer.size(), 100u);
  EXPECT_TRUE(reply(terminal, "Hello").starts_with(answer + "\r\nkvasir: the KV memory is used up")) << terminal.seen();
  EXPECT_EQ(reply(terminal, "/again"), "kvasir: the state before the last answer is gone; send the question again");
}

TEST_F(ChatCommands, ClearStartsOver) {
  Terminal terminal(arguments({"--system", "Be brief", "--kv", "streaming:sinks=4,window=252"}), plain());
  start(terminal);
  const std::string first = reply(terminal, "Hello");
  const std::string seen = reply(terminal, "/kv");
  EXPECT_NE(seen.find("streaming:sinks=4,window=252"), std::string::npos) << seen;
  EXPECT_NE(reply(terminal, "And now?"), first);
  EXPECT_EQ(reply(terminal, "/clear"), "kvasir: cleared");
  EXPECT_EQ(reply(terminal, "Hello"), first);
  EXPECT_EQ(reply(terminal, "/kv").substr(0, seen.find("bytes")), seen.substr(0, seen.find("bytes")));
}

TEST_F(ChatCommands, SaveAndLoadGoOn) {
  const std::string file = folder_.path("chat.kvs");
  Terminal terminal(arguments({"--temp", "0"}), plain());
  start(terminal);
  reply(terminal, "Hello");
  EXPECT_NE(reply(terminal, "/save " + file).find("kvasir: saved to '" + file + "', "), std::string::npos);
  const std::string next = reply(terminal, "And now?");
  EXPECT_NE(reply(terminal, "/load " + file).find("kvasir: loaded '" + file + "': "), std::string::npos)
      << terminal.seen();
  EXPECT_EQ(reply(terminal, "And now?"), next);
  Terminal other(arguments({"--temp", "0", "--load", file, "--chat"}), plain());
  start(other);
  EXPECT_EQ(reply(other, "And now?"), next);
}

TEST_F(ChatCommands, KvSaysWhatIsKeptAndForgotten) {
  Terminal terminal(arguments({"--kv", "streaming:sinks=4,window=28"}), plain());
  start(terminal);
  std::string shown = reply(terminal, "/kv");
  EXPECT_NE(shown.find("forgotten  nothing"), std::string::npos) << shown;
  reply(terminal, some_text(60));
  shown = reply(terminal, "/kv");
  EXPECT_NE(shown.find("kept       32: 0 to 3 and "), std::string::npos) << shown;
  EXPECT_NE(shown.find(": 4 to "), std::string::npos) << shown;
  EXPECT_NE(shown.find("no answer can draw on them"), std::string::npos) << shown;

  Terminal other(arguments({"--kv", "h2o:budget=32,recent=16", "--chunk", "16"}), plain());
  start(other);
  reply(other, some_text(60));
  shown = reply(other, "/kv");
  EXPECT_NE(shown.find("which ones differs between layers and heads"), std::string::npos) << shown;
}

TEST_F(ChatCommands, WhatIsRefusedLeavesAgain) {
  const std::string big = folder_.make("big", some_text(20000));
  Terminal terminal(arguments({"--kv", "full"}), plain());
  start(terminal);
  reply(terminal, "Hello");
  EXPECT_NE(reply(terminal, "/load " + folder_.path("none")).find("none"), std::string::npos) << terminal.seen();
  EXPECT_EQ(reply(terminal, "/again"), answer_by_seed("2"));
  reply(terminal, "/read " + big);
  EXPECT_NE(reply(terminal, "Why?").find("kvasir: the documents in front of this message are dropped"),
            std::string::npos)
      << terminal.seen();
  EXPECT_EQ(reply(terminal, "/again"), answer_by_seed("3"));
}

TEST_F(ChatCommands, ACutAnswerIsMarked) {
  Terminal terminal(run_arguments({"-n", "3", "--ignore-eos", "--temp", "0"}), plain());
  start(terminal);
  EXPECT_TRUE(reply(terminal, "Hello").ends_with("\r\nkvasir: cut after 3 tokens; /set tokens N allows more"));
  EXPECT_EQ(reply(terminal, "/set tokens 5"), "  tokens          5");
  EXPECT_TRUE(reply(terminal, "And?").ends_with("\r\nkvasir: cut after 5 tokens; /set tokens N allows more"));
}

TEST_F(ChatCommands, SetChangesHowAnswersAreDrawn) {
  Terminal terminal(arguments({"--temp", "0"}), plain());
  start(terminal);
  const std::string shown = reply(terminal, "/set");
  for (const char* line : {"  temp            0\r", "  seed            1\r", "  tokens          12"})
    EXPECT_NE(shown.find(line), std::string::npos) << shown;
  EXPECT_EQ(reply(terminal, "/set temp=1.5"), "  temp            1.5");
  EXPECT_NE(reply(terminal, "/set").find("temp            1.5"), std::string::npos);
  EXPECT_EQ(reply(terminal, "/set temp hot"), "kvasir: /set temp needs a number, not 'hot'");
  EXPECT_NE(reply(terminal, "/set top-p 2").find("top_p"), std::string::npos);
  EXPECT_EQ(reply(terminal, "/set tmp 1"),
            "kvasir: there is no setting 'tmp'; did you mean 'temp'?; there are temp, top-k, top-p, min-p, "
            "repeat-penalty, seed, tokens");
  EXPECT_NE(reply(terminal, "/set").find("temp            1.5"), std::string::npos) << "nothing has changed";
  reply(terminal, "/set temp 1");
  EXPECT_EQ(reply(terminal, "Hello"), answer_to("Hello", {"-n", "12", "--temp", "1", "--seed", "1"}));
}

TEST_F(ChatCommands, SystemStartsOver) {
  Terminal terminal(arguments({"--temp", "0", "--kv", "streaming:cap=64"}), plain());
  start(terminal);
  EXPECT_EQ(reply(terminal, "/system"), "  there is no system message but the template's own");
  reply(terminal, "Hello");
  EXPECT_EQ(reply(terminal, "/system Be brief"), "kvasir: the conversation starts over with this system message");
  EXPECT_EQ(reply(terminal, "/system"), "  Be brief");
  EXPECT_EQ(reply(terminal, "Hello"), answer_to("Hello", {"-n", "12", "--temp", "0", "--system", "Be brief"}));
  EXPECT_NE(reply(terminal, "/kv").find(",protect="), std::string::npos) << terminal.seen();
  const std::string large = reply(terminal, "/system " + some_text(60));
  EXPECT_NE(large.find("of the system message the first 32 are protected"), std::string::npos) << large;
  EXPECT_NE(reply(terminal, "/kv").find(",protect=32"), std::string::npos) << terminal.seen();
}

TEST_F(ChatCommands, SlashesThatAreNoCommands) {
  Terminal terminal(arguments({"--temp", "0"}), plain());
  start(terminal);
  EXPECT_EQ(reply(terminal, "/raed x"),
            "kvasir: there is no command '/raed'; did you mean '/read'? (/help lists them, and '//raed' sends it as a "
            "message)");
  EXPECT_EQ(reply(terminal, "/usr/bin/env"),
            "kvasir: there is no command '/usr/bin/env' (/help lists them, and '//usr/bin/env' sends it as a message)");
  EXPECT_EQ(reply(terminal, "/kv x"), "kvasir: /kv takes no argument; '//kv x' sends the line as a message");
  EXPECT_EQ(reply(terminal, "//kv"), greedy_answer_to("/kv"));
  const std::string help = reply(terminal, "/help");
  EXPECT_EQ(reply(terminal, "/?"), help);
  for (const char* name : {"/read FILE", "/save FILE", "/load FILE", "/clear", "/again", "/kv", "/help", "/bye", "//"})
    EXPECT_NE(help.find(std::string("  ") + name), std::string::npos) << help;
  EXPECT_EQ(help.find("Alt-Enter"), std::string::npos) << "nothing that this terminal cannot: " << help;
}

// The memory is used up under a policy that forgets nothing: the chat can still be cleared.
TEST_F(ChatCommands, AFullCacheEndsNothing) {
  Terminal terminal(arguments({"--kv", "full", "--kv-memory", "300KiB", "--temp", "0"}), plain());
  start(terminal);
  const std::string first = reply(terminal, "Hello");
  std::string last;
  for (int i = 0; i < 50 && last.find("KV memory") == std::string::npos; ++i) last = reply(terminal, "Go on, please");
  EXPECT_NE(last.find("KV memory"), std::string::npos) << terminal.seen();
  EXPECT_EQ(reply(terminal, "/clear"), "kvasir: cleared");
  EXPECT_EQ(reply(terminal, "Hello"), first);
}

}  // namespace
}  // namespace kvasir::test
