#include "cli/terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

namespace kvasir::test {
namespace {

std::chrono::steady_clock::time_point deadline() {
  return std::chrono::steady_clock::now() + kPatience;
}

}  // namespace

bool has_terminals() {
  int primary = -1;
  int secondary = -1;
  if (::openpty(&primary, &secondary, nullptr, nullptr, nullptr) != 0) return false;
  ::close(primary);
  ::close(secondary);
  return true;
}

bool await_blocked(pid_t process) {
  const auto until = deadline();
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

Terminal::Terminal(const Arguments& arguments, const TerminalSettings& settings) {
  const std::string program = settings.program.empty() ? binary_path() : settings.program;
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  winsize size{24, 80, 0, 0};
  child_ = ::forkpty(&fd_, nullptr, nullptr, &size);
  if (child_ == 0) {
    ::setenv("TERM", settings.term.c_str(), 1);
    if (settings.history) {
      ::setenv("KVASIR_HISTORY", settings.history->c_str(), 1);
    } else {
      ::unsetenv("KVASIR_HISTORY");
    }
    if (!settings.home.empty()) {
      ::setenv("HOME", settings.home.c_str(), 1);
      ::unsetenv("XDG_STATE_HOME");
    }
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
}

Terminal::~Terminal() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  ::close(fd_);
}

void Terminal::type(const std::string& text) {
  // In pieces, which the terminal's buffers hold: a program that is not read while it shows what is typed would wait.
  const auto until = deadline();
  for (std::size_t done = 0; done < text.size();) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    pollfd watched{fd_, POLLIN | POLLOUT, 0};
    ::poll(&watched, 1, 20);
    if ((watched.revents & POLLIN) != 0) read_some();
    if ((watched.revents & POLLOUT) == 0) continue;
    const ssize_t n = ::write(fd_, text.data() + done, std::min<std::size_t>(text.size() - done, 256));
    ASSERT_GT(n, 0);
    done += static_cast<std::size_t>(n);
  }
}

void Terminal::paste(std::string text) {
  std::ranges::replace(text, '\n', '\r');
  type("\x1b[200~" + text + "\x1b[201~");
}

void Terminal::resize(unsigned short columns) {
  const winsize size{24, columns, 0, 0};
  ASSERT_EQ(::ioctl(fd_, TIOCSWINSZ, &size), 0);
}

bool Terminal::await(const std::string& text) {
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

int Terminal::finish() {
  const auto until = deadline();
  while (std::chrono::steady_clock::now() < until) {
    read_some();
    int status = 0;
    if (::waitpid(child_, &status, WNOHANG) != child_) continue;
    child_ = -1;
    while (read_some()) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  return -1000;
}

bool Terminal::has_line_mode() const {
  termios mode;
  return ::tcgetattr(fd_, &mode) == 0 && (mode.c_lflag & ICANON) != 0 && (mode.c_lflag & ECHO) != 0;
}

// Returns false at the end of what is shown.
bool Terminal::read_some(int milliseconds) {
  pollfd watched{fd_, POLLIN, 0};
  if (::poll(&watched, 1, milliseconds) == 0) return child_ > 0 && ::kill(child_, 0) == 0;
  char buffer[4096];
  const ssize_t n = ::read(fd_, buffer, sizeof buffer);
  if (n > 0) seen_.append(buffer, static_cast<std::size_t>(n));
  return n > 0;
}

}  // namespace kvasir::test
