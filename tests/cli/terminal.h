// Drives a program on a pseudo-terminal: what is typed in, what is shown out.
// Thread-safety: none.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "cli/program.h"

namespace kvasir::test {

inline constexpr std::chrono::seconds kPatience{
    600};  // only a program that hangs takes so long, however slow the machine

// Whether the machine has pseudo-terminals; containers without /dev/pts have none.
bool has_terminals();

// Waits until the process has used no processor time for a while.
bool await_blocked(pid_t process);

struct TerminalSettings {
  std::string term = "xterm";               // TERM
  std::optional<std::string> history = "";  // KVASIR_HISTORY; nullopt: unset
  std::string home;                         // HOME, if not empty; XDG_STATE_HOME is then unset
  std::string program;                      // empty: kvasir
};

// A program on a terminal of its own, 80 columns wide.
class Terminal {
 public:
  explicit Terminal(const Arguments& arguments, const TerminalSettings& settings = {});
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal();

  // Types text, reading meanwhile what is shown.
  void type(const std::string& text);
  // The same as a terminal pastes it: between the marks of a paste, line ends as carriage returns.
  void paste(std::string text);

  // Makes the terminal so many columns wide.
  void resize(unsigned short columns);

  // Reads until `text` has come behind what was awaited before, or false after kPatience or at the end.
  bool await(const std::string& text);
  bool await_blocked() { return test::await_blocked(child_); }

  // Returns the exit code, or minus the signal that ended it; -1000 if it did not end by itself in time.
  int finish();

  const std::string& seen() const { return seen_; }
  // Returns what came behind the text that was awaited last.
  std::string rest() const { return seen_.substr(awaited_); }
  pid_t process() const { return child_; }

  // Whether the terminal echoes and hands over whole lines, as before the program started.
  bool has_line_mode() const;

 private:
  bool read_some(int milliseconds = 20);

  pid_t child_ = -1;
  int fd_ = -1;
  std::string seen_;
  std::size_t awaited_ = 0;
};

}  // namespace kvasir::test
