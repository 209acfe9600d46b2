// The line editor of a chat, as a newcomer uses it: pasting, arrow keys, history, Ctrl-C at each stage.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "cli/terminal.h"
#include "replay/trace_file.h"

namespace kvasir::test {
namespace {

const std::string kUp = "\x1b[A", kDown = "\x1b[B", kRight = "\x1b[C", kLeft = "\x1b[D", kHome = "\x1b[H",
                  kEnd = "\x1b[F", kDelete = "\x1b[3~", kAltEnter = "\x1b\r";

class ChatEditor : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_terminals()) GTEST_SKIP() << "needs pseudo-terminals (mount devpts on /dev/pts)";
  }
  TerminalSettings settings() const {
    return {.term = "xterm", .history = folder_.path("history"), .home = "", .program = ""};
  }
  static Arguments arguments(const Arguments& more = {}) {
    Arguments all = run_arguments({"-n", "4", "--ignore-eos", "--temp", "0"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static void start(Terminal& terminal) { ASSERT_TRUE(terminal.await("> ")) << terminal.seen(); }

  // Ends the chat and expects that the last answer was to exactly this message, the first of its chat.
  static void expect_message(Terminal& terminal, const std::string& message) {
    terminal.type("\x04");
    EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
    const int tokens = run_json({"--chat", "-p", message, "-n", "1"})["prompt_tokens"];
    EXPECT_TRUE(terminal.await("last answer: read " + std::to_string(tokens) + " tokens")) << tokens << "\n"
                                                                                           << terminal.seen();
    EXPECT_TRUE(terminal.has_line_mode());
    const std::string& seen = terminal.seen();
    EXPECT_LT(seen.rfind("\x1b[?2004h"), seen.rfind("\x1b[?2004l")) << "pastes are no longer marked";
  }
  // The messages that were typed, as the history has them.
  std::string history() const { return folder_.content("history"); }

  Folder folder_;
};

// Paragraphs with blank lines between, one of them a command's name, and words outside ASCII.
std::string pasted_text(std::size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i)
    text += i % 3 == 0 ? "\n\n" : i % 3 == 1 ? "/bye is said here \xc3\xa0 la carte.\n" : some_text(12);
  return text.substr(0, bytes) + " so.";
}

TEST_F(ChatEditor, APasteIsOneMessage) {
  const std::string text = pasted_text(5000);
  ASSERT_NE(text.find("\n\n"), std::string::npos);
  Terminal terminal(arguments(), settings());
  start(terminal);
  terminal.paste(text);
  ASSERT_TRUE(terminal.await("[paste 1: ")) << terminal.seen();
  EXPECT_EQ(terminal.seen().find("said here"), std::string::npos) << "a long one is not shown: " << terminal.seen();
  terminal.type("\r");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  expect_message(terminal, text);
}

TEST_F(ChatEditor, TextIsTypedAroundAPaste) {
  const std::string text = pasted_text(2000);
  Terminal terminal(arguments(), settings());
  start(terminal);
  terminal.type("Summarise: ");
  terminal.paste(text);
  ASSERT_TRUE(terminal.await("lines]")) << terminal.seen();
  terminal.type(" in one line" + kHome + "Please. \r");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  expect_message(terminal, "Please. Summarise: " + text + " in one line");
}

TEST_F(ChatEditor, APasteIsErasedAsAWholeAndNeverSentInPart) {
  Terminal terminal(arguments(), settings());
  start(terminal);
  terminal.type("a");
  terminal.paste(pasted_text(2000));
  ASSERT_TRUE(terminal.await("lines]")) << terminal.seen();
  terminal.type("\x7fz\r");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  EXPECT_EQ(history(), "az\n");
  terminal.paste(pasted_text(2000));
  ASSERT_TRUE(terminal.await("lines]")) << terminal.seen();
  terminal.type(kLeft + "\x7f\r");
  ASSERT_TRUE(terminal.await("kvasir: the message is not sent, as the mark of a paste in it was edited"))
      << terminal.seen();
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  expect_message(terminal, "az");
}

TEST_F(ChatEditor, AShortPasteIsShownWithItsLines) {
  Terminal terminal(arguments(), settings());
  start(terminal);
  terminal.paste("/one\n\nthree");
  ASSERT_TRUE(terminal.await("three")) << terminal.seen();
  terminal.type(" and more\r");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  EXPECT_EQ(history(), "/one\\n\\nthree and more\n");
  expect_message(terminal, "/one\n\nthree and more");
}

// While the answer is printed, nothing reads the terminal.
TEST_F(ChatEditor, APasteDuringAnAnswerIsTheNextMessage) {
  const std::string text = pasted_text(3000);
  Terminal terminal(run_arguments({"-n", "300", "--ignore-eos", "--temp", "0"}), settings());
  start(terminal);
  terminal.type("Tell me a long story\r");
  ASSERT_TRUE(terminal.await(" the ")) << terminal.seen();
  terminal.paste(text);
  ASSERT_TRUE(terminal.await("[paste 1: ")) << terminal.seen();
  EXPECT_EQ(terminal.seen().find("said here"), std::string::npos) << "it is not echoed into the answer";
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("> ")) << terminal.seen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

TEST_F(ChatEditor, ALongLineIsNotCut) {
  const std::string text = some_text(2500);
  ASSERT_GT(text.size(), 10000u);
  Terminal terminal(arguments(), settings());
  start(terminal);
  terminal.type(text + "\r");
  ASSERT_TRUE(terminal.await("\r\n> ")) << "nothing came";
  expect_message(terminal, text);
}

TEST_F(ChatEditor, WithoutAnEditorALongLineIsRefused) {
  Terminal terminal(arguments(), {.term = "dumb", .history = "", .home = "", .program = ""});
  start(terminal);
  terminal.type(std::string(5000, 'a') + "\n");
  ASSERT_TRUE(terminal.await("kvasir: the line is not sent, as this terminal cuts lines at 4095 bytes"))
      << terminal.seen();
  terminal.type("Hello\n");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

TEST_F(ChatEditor, KeysMoveInTheLine) {
  Terminal terminal(arguments(), settings());
  start(terminal);
  terminal.type("ello werld" + kLeft + kLeft + kLeft + "\x7fo" + kHome + "H" + kEnd + "!x" + kLeft + kDelete + "\r");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  terminal.type("gr\xc3\xbc\xc3\x9f dich" + kLeft + kLeft + kLeft + kLeft + kLeft + "\x7f\xc3\x9f" + kRight + "\r");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  EXPECT_EQ(history(), "Hello world!\ngr\xc3\xbc\xc3\x9f dich\n") << terminal.seen();
}

TEST_F(ChatEditor, ANewWidthShowsTheLineAgain) {
  Terminal terminal(arguments(), settings());
  start(terminal);
  terminal.type("some words that stay");
  ASSERT_TRUE(terminal.await("that stay")) << terminal.seen();
  terminal.resize(60);
  ASSERT_TRUE(terminal.await("> some words that stay")) << terminal.seen();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("^C\r\n> ")) << terminal.seen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

TEST_F(ChatEditor, AMessageHasSeveralLines) {
  Terminal terminal(arguments(), settings());
  start(terminal);
  terminal.type("one" + kAltEnter + "two\\\r");
  ASSERT_TRUE(terminal.await("\r\n. ")) << terminal.seen();
  terminal.type("three\\\\\r");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  EXPECT_EQ(history(), "one\\ntwo\\nthree\\\\\\\\\n") << terminal.seen();
  expect_message(terminal, "one\ntwo\nthree\\\\");
}

TEST_F(ChatEditor, HistoryOutlivesTheChat) {
  {
    Terminal terminal(arguments(), settings());
    start(terminal);
    for (const char* message : {"first message\r", "second\\\\ message\r", "/kv\r"}) {
      terminal.type(message);
      ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
    }
    terminal.type("/bye\r");
    EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
  }
  struct stat st {};
  ASSERT_EQ(::stat(folder_.path("history").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  Terminal terminal(arguments(), settings());
  start(terminal);
  terminal.type(kUp + kUp + kUp + kUp + kDown + "\r");
  ASSERT_TRUE(terminal.await("second")) << terminal.seen();
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  terminal.type("\x12" + std::string("first") + "\r");  // Ctrl-R
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  EXPECT_EQ(history(), "first message\nsecond\\\\\\\\ message\n/kv\n/bye\nsecond\\\\\\\\ message\nfirst message\n")
      << terminal.seen();
}

TEST_F(ChatEditor, HistoryIsBoundedAndMayBeOff) {
  std::string old;
  for (int i = 0; i < 1500; ++i) old += "message " + std::to_string(i) + "\n";
  const std::string file = folder_.make("history", old);
  {
    Terminal terminal(arguments(), settings());
    start(terminal);
    EXPECT_EQ(bytes_of(file), old.substr(old.find("message 500\n")));
  }
  Folder home;
  for (const bool off : {true, false}) {
    TerminalSettings chosen{.term = "xterm", .history = std::nullopt, .home = home.path(), .program = ""};
    if (off) chosen.history = "";
    Terminal terminal(arguments(), chosen);
    start(terminal);
    terminal.type("Hello\r");
    ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
    EXPECT_EQ(std::filesystem::exists(home.path(".local/state/kvasir/history")), !off);
  }
  EXPECT_EQ(bytes_of(home.path(".local/state/kvasir/history")), "Hello\n");
}

TEST_F(ChatEditor, HistoryBecomesItsOwnersAlone) {
  const std::string file = folder_.make("history", "old\n");
  ASSERT_EQ(::chmod(file.c_str(), 0644), 0);
  Terminal terminal(arguments(), settings());
  start(terminal);
  terminal.type("/kv\r");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  struct stat st {};
  ASSERT_EQ(::stat(file.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(history(), "old\n/kv\n");
}

// Another chat appends while this one is about to trim the file.
TEST_F(ChatEditor, TrimmingLosesNoLineOfAnotherChat) {
  std::string old;
  for (int i = 0; i < 1500; ++i) old += "message " + std::to_string(i) + "\n";
  const std::string file = folder_.make("history", old);
  const int other = ::open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  ASSERT_GE(other, 0);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  Terminal terminal(arguments(), settings());
  ASSERT_TRUE(terminal.await_blocked());
  ASSERT_EQ(::write(other, "parallel\n", 9), 9);
  ::close(other);
  start(terminal);
  EXPECT_EQ(history(), old.substr(old.find("message 501\n")) + "parallel\n");
}

TEST_F(ChatEditor, TextThatLooksLikeAMarkIsSent) {
  Terminal terminal(arguments(), settings());
  start(terminal);
  terminal.paste(pasted_text(2000));
  ASSERT_TRUE(terminal.await("lines]")) << terminal.seen();
  terminal.type("\r");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  terminal.type("/clear\r");
  ASSERT_TRUE(terminal.await("cleared\r\n> ")) << terminal.seen();
  const std::string text = "what does [paste 1: mean?";
  terminal.type(text + "\r");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  EXPECT_EQ(terminal.seen().find("not sent"), std::string::npos) << terminal.seen();
  expect_message(terminal, text);
}

TEST_F(ChatEditor, AMarkThatHistoryBroughtBackIsCheckedToo) {
  Terminal terminal(arguments(), settings());
  start(terminal);
  terminal.paste(pasted_text(2000));
  ASSERT_TRUE(terminal.await("lines]")) << terminal.seen();
  terminal.type("\r");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.seen();
  terminal.type(kUp);
  ASSERT_TRUE(terminal.await("lines]")) << terminal.rest();
  terminal.type(kLeft + "\x7f\r");
  ASSERT_TRUE(terminal.await("kvasir: the message is not sent, as the mark of a paste in it was edited"))
      << terminal.rest();
}

TEST_F(ChatEditor, InterruptStopsWhatGoesOnAtEachStage) {
  Terminal terminal(run_arguments({"--ignore-eos", "--temp", "0", "--isa", "generic", "--chunk", "8"}), settings());
  start(terminal);
  terminal.type("a line to be cleared");
  ASSERT_TRUE(terminal.await("cleared")) << terminal.seen();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("^C\r\n> ")) << terminal.seen();
  terminal.type("\x03");  // at an empty prompt
  ASSERT_TRUE(terminal.await("Ctrl-D or /bye ends the chat\r\n> ")) << terminal.seen();
  terminal.type("\x12" + std::string("sear"));  // while history is searched
  ASSERT_TRUE(terminal.await("bck?")) << terminal.seen();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("^C\r\n> ")) << terminal.seen();
  terminal.type("goes on\\\r");
  ASSERT_TRUE(terminal.await("\r\n. ")) << terminal.seen();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("^C\r\n> ")) << terminal.seen();
  terminal.paste(some_text(200000));
  ASSERT_TRUE(terminal.await("line]")) << terminal.rest();
  terminal.type("\r");
  ASSERT_TRUE(terminal.await("reading [")) << terminal.rest();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("kvasir: stopped; the message is taken back, and /again sends it")) << terminal.rest();
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.rest();
  terminal.type("/kv\r");
  ASSERT_TRUE(terminal.await("seen       0 tokens")) << terminal.rest();
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.rest();
  terminal.type("/again\r");
  ASSERT_TRUE(terminal.await("reading [")) << terminal.rest();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("kvasir: stopped; the message is taken back")) << terminal.rest();
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.rest();
  terminal.type("/clear\r");
  ASSERT_TRUE(terminal.await("cleared\r\n> ")) << terminal.rest();
  terminal.type("Tell me a long story\r");
  ASSERT_TRUE(terminal.await(" the ")) << terminal.rest();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("\r\n> ")) << terminal.rest();
  EXPECT_EQ(history(), "/kv\n/again\n/clear\nTell me a long story\n") << "what was cleared was not sent";
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.rest();
  EXPECT_TRUE(terminal.has_line_mode());
}

// The terminal must be usable after a signal that no polling sees.
TEST_F(ChatEditor, WhatEndsTheProcessRestoresTheTerminal) {
  for (const int signal : {SIGQUIT, SIGABRT}) {
    Terminal terminal(arguments(), settings());
    start(terminal);
    for (int i = 0; i < 500 && terminal.has_line_mode(); ++i) ::usleep(10'000);  // the prompt comes first
    EXPECT_FALSE(terminal.has_line_mode());
    ::kill(terminal.process(), signal);
    EXPECT_EQ(terminal.finish(), -signal) << terminal.seen();
    EXPECT_TRUE(terminal.has_line_mode());
    EXPECT_NE(terminal.seen().find("\x1b[?2004l"), std::string::npos);
  }
}

// The second one, while the first has not been seen yet, ends the process. Two kinds, as equal ones would merge into
// one while the process is stopped.
TEST_F(ChatEditor, ASecondInterruptBeforeTheFirstIsSeenEndsTheProcess) {
  Terminal terminal(arguments(), settings());
  start(terminal);
  for (int i = 0; i < 500 && terminal.has_line_mode(); ++i) ::usleep(10'000);
  ASSERT_FALSE(terminal.has_line_mode());
  ASSERT_TRUE(terminal.await_blocked());
  for (const int signal : {SIGSTOP, SIGINT, SIGTERM, SIGCONT}) ASSERT_EQ(::kill(terminal.process(), signal), 0);
  const int end = terminal.finish();
  EXPECT_TRUE(end == -SIGINT || end == -SIGTERM) << end << " " << terminal.seen();
  EXPECT_TRUE(terminal.has_line_mode());
  EXPECT_NE(terminal.seen().find("\x1b[?2004l"), std::string::npos);
}

}  // namespace
}  // namespace kvasir::test
