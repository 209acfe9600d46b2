// Drives the built program: arguments in; exit code, standard output and standard error out.
// Thread-safety: none; one test at a time.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
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
  double seconds = 0;

  int error_lines() const;  // -1 if the last line is not complete
};

struct Surroundings {
  std::string input;              // standard input
  bool input_stays_open = false;  // behind `input`, more could come
  std::string output_file;        // standard output goes there instead of into `out`
  std::string error_file;         // likewise
  std::size_t most_output = 0;    // if not 0: standard output is closed after this many bytes
  double interrupt_after = 0;     // if not 0: seconds from the first output (or, with none to come, from the start)
                                  // to the signal
  int signal = SIGINT;
  std::size_t file_size_limit =
      0;  // if not 0: bytes that a file may have, as a full disk would; its signal is not ignored
  bool interrupt_silent = false;  // no output is awaited before interrupt_after counts
  double timeout = 120;           // seconds
};

std::string binary_path();
std::string model_path();  // the small model

Finished run_program(const Arguments& arguments, const Surroundings& surroundings = {});

// {"run", "-m", the small model, "-t", "1"} and more.
Arguments run_arguments(const Arguments& more);
Finished run_model(const Arguments& more, const Surroundings& surroundings = {});
// With --json: the object, after exit code 0 was expected.
Json run_json(const Arguments& more, const Surroundings& surroundings = {});
Json json_of(const Arguments& arguments, const Surroundings& surroundings = {});

// The file's contents; one that cannot be read fails the test.
std::string bytes_of(const std::string& path);

// Ordinary words, always the same ones: about as many tokens.
std::string some_text(int words);

}  // namespace kvasir::test
