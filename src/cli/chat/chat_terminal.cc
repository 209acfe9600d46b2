#include "cli/chat/chat_terminal.h"

#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string_view>

#include "cli/command.h"
#include "cli/signals.h"

namespace kvasir::cli {
namespace {

// For signal handlers.
termios g_original;
std::atomic<bool> g_continued{false};
std::atomic<bool> g_resized{false};

void write_code(std::string_view code) {
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, code.data(), code.size());
}

// Async-signal-safe.
void bracket_pastes(bool on) {
  write_code(on ? "\x1b[?2004h" : "\x1b[?2004l");
}
void restore() {
  bracket_pastes(false);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &g_original);
}

void set_handler(int signal, void (*handler)(int), int flags = 0) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(signal, &action, nullptr);
}

// Lets the signal's default action happen now, inside its handler.
void default_action(int signal) {
  set_handler(signal, SIG_DFL);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  ::raise(signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void on_end(int signal) {
  restore();
  default_action(signal);
}

void on_stop(int signal) {
  const int error = errno;
  termios current;
  const bool known = ::tcgetattr(STDIN_FILENO, &current) == 0;
  restore();
  default_action(signal);  // returns when the process is continued
  set_handler(signal, on_stop, SA_RESTART);
  if (known) ::tcsetattr(STDIN_FILENO, TCSANOW, &current);
  bracket_pastes(true);
  g_continued.store(true);
  errno = error;
}

void on_resize(int) {
  g_resized.store(true);
}

}  // namespace

bool is_editable_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0 && term != nullptr && *term != '\0' &&
         std::string_view(term) != "dumb";
}

ChatTerminal::ChatTerminal() {
  ::tcgetattr(STDIN_FILENO, &g_original);
  before_forced_end(restore);
  set_handler(SIGTSTP, on_stop, SA_RESTART);
  set_handler(SIGWINCH, on_resize, SA_RESTART);
  for (const int signal : {SIGQUIT, SIGABRT}) set_handler(signal, on_end);
  bracket_pastes(true);
  apply();
}

ChatTerminal::~ChatTerminal() {
  restore();
  before_forced_end(nullptr);
  for (const int signal : {SIGTSTP, SIGWINCH, SIGQUIT, SIGABRT}) set_handler(signal, SIG_DFL);
}

void ChatTerminal::apply() {
  termios mode = g_original;
  mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  mode.c_cc[VMIN] = 1;
  mode.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &mode);
}

bool ChatTerminal::take_continued() {
  return g_continued.exchange(false);
}
bool ChatTerminal::take_resized() {
  return g_resized.exchange(false);
}

}  // namespace kvasir::cli
