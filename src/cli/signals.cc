#include "cli/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <string_view>
#include <utility>

namespace kvasir::cli {
namespace {

std::atomic<bool> g_interrupted{false};
std::atomic<int> g_signal{0};  // the newest interrupt
int g_wake[2] = {-1, -1};      // a pipe, so that an interrupt just before a wait also ends that wait
std::atomic<void (*)()> g_restore{nullptr};
constexpr int kInterrupts[] = {SIGINT, SIGTERM, SIGHUP};
struct sigaction g_before[3];  // actions before catch_interrupts()

// Returns if the signal is blocked, as in its own handler: it then acts when the handler returns.
void raise_default(int signal) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  ::raise(signal);
}

void on_interrupt(int signal) {
  g_signal.store(signal);
  if (g_interrupted.exchange(true)) {
    if (auto* const restore = g_restore.load()) restore();
    raise_default(signal);
    return;
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(g_wake[1], "", 1);
  errno = error;
}

}  // namespace

void ignore_write_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void explain_bus_errors() {
  struct sigaction action {};
  action.sa_handler = [](int) {
    // Several threads may read the file. The first one here writes and ends the process.
    static std::atomic_flag written_once = ATOMIC_FLAG_INIT;
    while (written_once.test_and_set()) ::pause();
    static constexpr std::string_view kLine =
        "kvasir: a file of weights became shorter, or its disk failed, while it was in use; leave such files as they "
        "are while kvasir runs, and replace them by renaming\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
    ::_exit(1);
  };
  ::sigaction(SIGBUS, &action, nullptr);
}

void catch_interrupts() {
  if (::pipe2(g_wake, O_CLOEXEC | O_NONBLOCK) != 0) g_wake[0] = g_wake[1] = -1;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  for (std::size_t i = 0; i < std::size(kInterrupts); ++i) ::sigaction(kInterrupts[i], &action, &g_before[i]);
}

void release_interrupts() {
  for (std::size_t i = 0; i < std::size(kInterrupts); ++i) ::sigaction(kInterrupts[i], &g_before[i], nullptr);
  for (int& end : g_wake)
    if (end >= 0) ::close(std::exchange(end, -1));
}

bool interrupted() {
  return g_interrupted.load();
}
void clear_interrupt() {
  char byte;
  while (::read(g_wake[0], &byte, 1) == 1) {
  }
  g_interrupted.store(false);
}

int interrupting_signal() {
  return g_signal.load();
}

void before_forced_end(void (*restore)()) {
  g_restore.store(restore);
}

void end_by_signal(int signal) {
  raise_default(signal);
  ::_exit(128 + signal);  // the signal is blocked, or does not end processes
}

bool wait_for_input(const std::function<void()>& on_other_signal) {
  pollfd watched[] = {{STDIN_FILENO, POLLIN, 0}, {g_wake[0], POLLIN, 0}};
  while (!interrupted()) {
    if (on_other_signal) on_other_signal();
    if (::poll(watched, std::size(watched), -1) < 0 && errno == EINTR) continue;
    if (watched[1].revents == 0) return true;
  }
  return false;
}

}  // namespace kvasir::cli
