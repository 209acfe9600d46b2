// Drives the built program: arguments in; exit code, standard output and standard error out.
// Thread-safety: none; one test at a time.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::test {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

struct Finished {
  int exit_code = -1;  // -1: ended by a signal, or had to be killed
  int signal = 0;
  bool timed_out = false;
  std::string out;
  std::string err;
  std::uint64_t peak_bytes = 0;  // most that were in memory at once, mapped files too
  double cpu_seconds = 0;        // of processor time: what else runs on the machine hardly counts
  double after_signal = -1;      // seconds from the signal that was sent to the end

  int error_lines() const;  // -1 if the last line is not complete
};

// The event from which `interrupt_after` is counted.
enum class Interrupt {
  kNever,
  kStart,        // the process was made
  kFirstOutput,  // on standard output
  kCaught,       // the program has a handler for the signal: its work begins
};

struct Surroundings {
  static constexpr int kNoNamespace = 126;  // exit code: the files of the control group could not be replaced

  std::string input;              // standard input
  bool input_stays_open = false;  // behind `input`, more could come
  std::string output_file;        // standard output goes there instead of into `out`
  std::string error_file;         // likewise
  std::size_t most_output = 0;    // if not 0: standard output is closed after this many bytes
  Interrupt interrupt = Interrupt::kNever;
  double interrupt_after = 0;  // seconds from there to the signal
  int signal = SIGINT;
  std::size_t file_size_limit = 0;      // if not 0: bytes a file may have, as on a full disk; the signal is not ignored
  std::size_t address_space_limit = 0;  // if not 0: bytes that may be mapped, as under `ulimit -v`
  std::uint64_t group_limit = 0;        // if not 0: bytes that the files of its control group say it may use,
  std::uint64_t group_used = 0;         // those that they say it does use,
  bool group_is_old = false;            // and whether they are of version 1
  double timeout = 900;                 // seconds; only a program that hangs takes so long, however slow the machine
};

// Seconds within which a long run must end after a signal, even on a slow and busy machine.
inline constexpr double kSoon = 30;

std::string binary_path();
std::string model_path();  // the small model

Finished run_program(const Arguments& arguments, const Surroundings& surroundings = {});

// Whether `text` is `expected`, in which each <number> stands for any digits.
bool matches(std::string_view text, std::string_view expected);

// Expects that the program refuses: this exit code, nothing on standard output, and "kvasir: ", the message and a line
// end on standard error, where each <number> of the message stands for any digits. REQUIRES: code 1 or 2.
void expect_refused(const Finished& done, int code, const std::string& message);
void expect_refused(const Arguments& arguments, int code, const std::string& message);

// A command line that must be refused, with its exit code and message.
struct Refused {
  Arguments arguments;
  int code;
  std::string message;
};
// Checks each of them, appended to the arguments of `front`.
void expect_all_refused(const std::vector<Refused>& cases, const Arguments& front = {});

// {"run", "-m", the small model, "-t", "1"} and more.
Arguments run_arguments(const Arguments& more);
Finished run_model(const Arguments& more, const Surroundings& surroundings = {});
// With --json: the object, after exit code 0 was expected.
Json run_json(const Arguments& more, const Surroundings& surroundings = {});
Json json_of(const Arguments& arguments, const Surroundings& surroundings = {});

// The file's contents; one that cannot be read fails the test.
std::string bytes_of(const std::string& path);

// Returns a fixed text of ordinary words, about one token each.
std::string some_text(int words);

}  // namespace kvasir::test
