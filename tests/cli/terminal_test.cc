// kvasir run on a terminal: chat.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "cli/program.h"

namespace kvasir::test {
namespace {

constexpr std::chrono::seconds kPatience{600};  // only a program that hangs takes so long, however slow the machine

// Containers without /dev/pts have no terminals to give.
class Chat : public testing::Test {
 protected:
  void SetUp() override {
    int primary = -1;
    int secondary = -1;
    if (::openpty(&primary, &secondary, nullptr, nullptr, nullptr) != 0)
      GTEST_SKIP() << "needs pseudo-terminals (mount devpts on /dev/pts)";
    ::close(primary);
    ::close(secondary);
  }
};

// Waits until the process has used no processor time for a while.
bool await_blocked(pid_t process) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (std::string before, now = "running"; now != before;) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    before = now;
    std::ifstream stat(fmt::format("/proc/{}/stat", process));
    now.clear();
    for (std::string field; stat >> field;) now += field + " ";
  }
  return true;
}

// The program on a terminal of its own.
class Terminal {
 public:
  explicit Terminal(const Arguments& arguments) {
    const std::string binary = binary_path();
    std::vector<char*> argv{const_cast<char*>(binary.c_str())};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    child_ = ::forkpty(&fd_, nullptr, nullptr, nullptr);
    if (child_ == 0) {
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::close(fd_);
  }

  void type(const std::string& text) {
    ASSERT_EQ(::write(fd_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  // Reads until `text` has come behind what was awaited before, or false after kPatience or at the end.
  bool await(const std::string& text) {
    const auto until = deadline();
    for (;;) {
      const std::size_t found = seen_.find(text, awaited_);
      if (found != std::string::npos) {
        awaited_ = found + text.size();
        return true;
      }
      if (std::chrono::steady_clock::now() > until || !read_some()) return false;
    }
  }
  bool await_blocked() { return test::await_blocked(child_); }

  // The exit code, or -1 if it did not end by itself in time.
  int finish() {
    const auto until = deadline();
    while (std::chrono::steady_clock::now() < until) {
      read_some();
      int status = 0;
      if (::waitpid(child_, &status, WNOHANG) != child_) continue;
      while (read_some()) {
      }
      child_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    return -1;
  }
  const std::string& seen() const { return seen_; }

 private:
  static std::chrono::steady_clock::time_point deadline() { return std::chrono::steady_clock::now() + kPatience; }

  bool read_some() {
    pollfd watched{fd_, POLLIN, 0};
    if (::poll(&watched, 1, 20) == 0) return child_ > 0 && ::kill(child_, 0) == 0;
    char buffer[4096];
    const ssize_t n = ::read(fd_, buffer, sizeof buffer);
    if (n > 0) seen_.append(buffer, static_cast<std::size_t>(n));
    return n > 0;
  }

  pid_t child_ = -1;
  int fd_ = -1;
  std::string seen_;
  std::size_t awaited_ = 0;
};

TEST_F(Chat, AnswersLineByLineAndEndsWithASummary) {
  Terminal terminal(run_arguments({"-n", "8", "--seed", "1", "--ignore-eos"}));
  ASSERT_TRUE(terminal.await("> ")) << terminal.seen();
  for (const char* line : {"Hello there\n", "Who are you?\n"}) {
    terminal.type(line);
    ASSERT_TRUE(terminal.await("\n> ")) << terminal.seen();
  }
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
  EXPECT_TRUE(terminal.await("tokens seen")) << terminal.seen();
}

TEST_F(Chat, EmptyLineEnds) {
  Terminal terminal(run_arguments({"-n", "8"}));
  ASSERT_TRUE(terminal.await("> ")) << terminal.seen();
  terminal.type("\n");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

TEST_F(Chat, InterruptEndsTheAnswerAlone) {
  Terminal terminal(run_arguments({"--ignore-eos", "--temp", "0"}));
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

TEST_F(Chat, InterruptEndsAnAnswerThatWaitsForTheTerminal) {
  Terminal terminal(run_arguments({"--ignore-eos", "--temp", "0"}));
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

TEST_F(Chat, InterruptAtThePromptEnds) {
  Terminal terminal(run_arguments({"-n", "8"}));
  ASSERT_TRUE(terminal.await("> ")) << terminal.seen();
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(), 0) << terminal.seen();
}

TEST_F(Chat, InvalidTextIsRefusedAndTheChatGoesOn) {
  Terminal terminal(run_arguments({"-n", "8", "--ignore-eos"}));
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
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << "signal " << signal << ", status " << status;
  }
}

TEST_F(Chat, JsonNeedsAPrompt) {
  Terminal terminal(run_arguments({"--json"}));
  EXPECT_EQ(terminal.finish(), 2) << terminal.seen();
  EXPECT_EQ(terminal.seen().substr(0, 8), "kvasir: ") << terminal.seen();
}

}  // namespace
}  // namespace kvasir::test
