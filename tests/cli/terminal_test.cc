// kvasir run on a terminal: chat, line by line and with Ctrl-C; and runs that a signal ends.
#include "cli/terminal.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace kvasir::test {
namespace {

// With the line editor (xterm) and without (dumb).
class Chat : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!has_terminals()) GTEST_SKIP() << "needs pseudo-terminals (mount devpts on /dev/pts)";
  }
  static TerminalSettings settings() { return {.term = GetParam(), .history = "", .home = "", .program = ""}; }
};
INSTANTIATE_TEST_SUITE_P(Terminals, Chat, testing::Values("xterm", "dumb"),
                         [](const auto& chosen) { return std::string(chosen.param); });

TEST_P(Chat, AnswersLineByLineAndEndsWithASummary) {
  Terminal terminal(run_arguments({"-n", "8", "--seed", "1", "--ignore-eos"}), settings());
  ASSERT_TRUE(terminal.await("> ")) << terminal.seen();
  for (const char* line : {"Hello there\n", "Who are you?\n"}) {
    terminal.type(line);
    ASSERT_TRUE(terminal.await("\n> ")) << terminal.seen();
  }
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
  EXPECT_TRUE(terminal.await("tokens seen")) << terminal.seen();
}

TEST_P(Chat, EmptyLinesAreIgnored) {
  Terminal terminal(run_arguments({"-n", "8", "--ignore-eos"}), settings());
  ASSERT_TRUE(terminal.await("> ")) << terminal.seen();
  for (const char* line : {"\n", "   \n", "Hello\n"}) {
    terminal.type(line);
    ASSERT_TRUE(terminal.await("\n> ")) << terminal.seen();
  }
  terminal.type("/bye\n");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
  EXPECT_TRUE(terminal.await("tokens seen")) << "one message was answered: " << terminal.seen();
}

TEST_P(Chat, InterruptEndsTheAnswerAlone) {
  Terminal terminal(run_arguments({"--ignore-eos", "--temp", "0"}), settings());
  ASSERT_TRUE(terminal.await("> ")) << terminal.seen();
  terminal.type("Tell me a long story\n");
  ASSERT_TRUE(terminal.await("story\r\n")) << terminal.seen();
  ASSERT_TRUE(terminal.await(" the ")) << terminal.seen();  // text, not the progress bar of the prompt
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("\n> ")) << terminal.seen();
  terminal.type("And another\n");
  ASSERT_TRUE(terminal.await("another\r\n")) << terminal.seen();
  ASSERT_TRUE(terminal.await(" the ")) << terminal.seen();  // text, not the progress bar of the prompt
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("\n> ")) << terminal.seen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
  EXPECT_TRUE(terminal.await("ended by cancelled")) << terminal.seen();
}

TEST_P(Chat, InterruptEndsAnAnswerThatWaitsForTheTerminal) {
  Terminal terminal(run_arguments({"--ignore-eos", "--temp", "0"}), settings());
  ASSERT_TRUE(terminal.await("> ")) << terminal.seen();
  terminal.type("Tell me a long story\n");
  ASSERT_TRUE(terminal.await(" the ")) << terminal.seen();
  terminal.type("\x13");  // Ctrl-S: the terminal takes no more output
  ASSERT_TRUE(terminal.await_blocked());
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("\n> ")) << terminal.seen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
  EXPECT_TRUE(terminal.await("ended by cancelled")) << terminal.seen();
}

TEST_P(Chat, InterruptAtThePromptClearsTheLineAndSaysHowToLeave) {
  Terminal terminal(run_arguments({"-n", "8", "--ignore-eos"}), settings());
  ASSERT_TRUE(terminal.await("> ")) << terminal.seen();
  terminal.type("not to be sent");
  ASSERT_TRUE(terminal.await("not to be sent")) << terminal.seen();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("> ")) << terminal.seen();
  for (int i = 0; i < 2; ++i) {
    terminal.type("\x03");
    ASSERT_TRUE(terminal.await("kvasir: Ctrl-D or /bye ends the chat\r\n> ")) << terminal.seen();
  }
  terminal.type("a line that goes on\\\n");
  ASSERT_TRUE(terminal.await("\n. ")) << terminal.seen();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("\n> ")) << terminal.seen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
  EXPECT_EQ(terminal.seen().find("tokens seen"), std::string::npos) << "nothing was answered: " << terminal.seen();
}

TEST_P(Chat, SignalsEndItAndItsSessionIsSaved) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    const std::string file = ::testing::TempDir() + "kvasir-chat-" + std::to_string(::getpid());
    Terminal terminal(run_arguments({"-n", "8", "--ignore-eos", "--save", file}), settings());
    ASSERT_TRUE(terminal.await("> ")) << terminal.seen();
    terminal.type("Hello\n");
    ASSERT_TRUE(terminal.await("\n> ")) << terminal.seen();
    ::kill(terminal.process(), signal);
    EXPECT_EQ(terminal.finish(), 1) << terminal.seen();
    EXPECT_TRUE(terminal.has_line_mode());
    EXPECT_EQ(::unlink(file.c_str()), 0) << "it was saved";
  }
}

TEST_P(Chat, InvalidTextIsRefusedAndTheChatGoesOn) {
  Terminal terminal(run_arguments({"-n", "8", "--ignore-eos"}), settings());
  ASSERT_TRUE(terminal.await("> ")) << terminal.seen();
  terminal.type("caf\xe9\n");
  ASSERT_TRUE(terminal.await("kvasir: the text is not valid UTF-8 at byte 3 (0xE9)")) << terminal.seen();
  terminal.type("Hello\n");
  ASSERT_TRUE(terminal.await("\n> ")) << terminal.seen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

// One signal is enough although the reader of the output has stopped reading.
TEST(Signals, EndARunWhoseReaderStalls) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    int output[2];
    ASSERT_EQ(::pipe(output), 0);
    ASSERT_GT(::fcntl(output[1], F_SETPIPE_SZ, 4096), 0);
    const std::string binary = binary_path();
    std::vector<std::string> arguments = run_arguments({"-p", "Once", "--ignore-eos", "--temp", "0", "-n", "-1"});
    std::vector<char*> argv{const_cast<char*>(binary.c_str())};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::dup2(output[1], STDOUT_FILENO);
      ::close(output[0]);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(output[1]);
    const bool blocked = await_blocked(child);
    ::kill(child, signal);
    int status = 0;
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (::waitpid(child, &status, WNOHANG) == 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::kill(child, SIGKILL);
    ::close(output[0]);
    EXPECT_TRUE(blocked);
    const bool by_signal = WIFSIGNALED(status) && WTERMSIG(status) == SIGINT;
    EXPECT_TRUE(signal == SIGINT ? by_signal : WIFEXITED(status) && WEXITSTATUS(status) == 1)
        << "signal " << signal << ", status " << status;
  }
}

// A shell goes on with its loop unless the program died by the signal.
TEST(Signals, InterruptEndsAShellsLoop) {
  if (!has_terminals()) GTEST_SKIP() << "needs pseudo-terminals (mount devpts on /dev/pts)";
  Arguments arguments = {"-c", R"(for i in 1 2 3; do "$@"; echo "turn $i ended"; done)", "loop", binary_path()};
  for (const std::string& argument : run_arguments({"-p", "Once", "--ignore-eos", "-n", "-1", "--temp", "0"}))
    arguments.push_back(argument);
  Terminal terminal(arguments, {.term = "xterm", .history = "", .home = "", .program = "bash"});
  ASSERT_TRUE(terminal.await(" the ")) << terminal.seen();
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(), -SIGINT) << terminal.seen();
  EXPECT_TRUE(terminal.await("ended by cancelled")) << terminal.seen();
  EXPECT_EQ(terminal.seen().find("turn 1 ended"), std::string::npos) << terminal.seen();
}

TEST_P(Chat, JsonNeedsAPrompt) {
  Terminal terminal(run_arguments({"--json"}), settings());
  EXPECT_EQ(terminal.finish(), 2) << terminal.seen();
  EXPECT_EQ(terminal.seen().substr(0, 8), "kvasir: ") << terminal.seen();
}

}  // namespace
}  // namespace kvasir::test
