// What all commands share: registration, exit codes, common options, output.
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/engine.h"
#include "kvasir/options.h"
#include "kvasir/status.h"

namespace kvasir::cli {

using Json = nlohmann::ordered_json;

// Exit codes: 0 done; 1 a run failed; 2 the command line or an input was wrong.
int exit_code(const Status& status);

// One line for a person. `program` is what parsed the command line. For a Status: what went wrong, and behind it those
// options of the command that mend it: "... [--kv-memory, --chunk]". Else: what is wrong with the command line, and
// where help is.
std::string error_text(const Status& status, const CLI::App& program);
std::string error_text(const CLI::ParseError& error, const CLI::App& program);

// The command that ran leaves its status here.
struct Outcome {
  Status status;
};

// One function per command, each in its file: adds the subcommand to the program.
void add_run(CLI::App& program, Outcome& outcome);
void add_info(CLI::App& program, Outcome& outcome);
void add_tokenize(CLI::App& program, Outcome& outcome);
void add_plan(CLI::App& program, Outcome& outcome);
void add_policies(CLI::App& program, Outcome& outcome);
void add_eval(CLI::App& program, Outcome& outcome);
void add_replay(CLI::App& program, Outcome& outcome);
void add_record(CLI::App& program, Outcome& outcome);
void add_inspect(CLI::App& program, Outcome& outcome);
void add_bench(CLI::App& program, Outcome& outcome);

void add_model_option(CLI::App& command, std::string& path);           // -m
void add_engine_options(CLI::App& command, EngineOptions& options);    // -m, -t, --isa, --kv-type, --page
void add_chunk_option(CLI::App& command, EngineOptions& options);      // --chunk
void add_kv_memory_option(CLI::App& command, EngineOptions& options);  // --kv-memory
// --kv, one policy. An empty one is refused: it would read like the default.
void add_policy_option(CLI::App& command, std::string& policy, const std::string& help);
// A byte count such as 512MiB or 2GiB.
CLI::Option* add_bytes_option(CLI::App& command, const std::string& name, std::uint64_t& bytes,
                              const std::string& help);

// Holds the values of all options that take numbers to what their types hold, where CLI11 would wrap or clamp them or
// read nothing as 0. Call it once all commands are added.
void check_numbers(CLI::App& program);

// Standard error. What cannot be written there is lost: a full disk behind a log ends no run.
template <class... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

// Standard output. Errors: kIo or kResourceExhausted if it cannot be written (a full disk); a closed pipe is an error
// too.
Status print(std::string_view text);
Status print_json(const Json& json);

std::string human_bytes(std::uint64_t bytes);  // "3.4 MiB"

// Errors: kInvalidArgument if the file to write is one of those to read.
Status check_output(const std::string& path, std::span<const std::string> inputs);

// The file, or, of a folder, its files whose names end in `extension`, by name; `what` they hold. Errors: kIo;
// kInvalidArgument for a folder without such a file.
Result<std::vector<std::string>> files_at(const std::string& path, std::string_view extension, std::string_view what);

// "0-3 7 40-47" of ascending ids, cut at a space before `limit` bytes.
std::string id_ranges(std::span<const std::int64_t> ids, std::size_t limit);

// Makes text safe to show on one line of a terminal: control characters escaped, cut at `limit` bytes.
std::string printable(std::string_view text, std::size_t limit);

// A closed pipe and a file that may grow no more become errors of writing instead of signals.
void ignore_write_signals();

// From catch_interrupts() on, the first Ctrl-C (SIGINT) or SIGTERM makes interrupted() true until it is cleared, and
// the second ends the process; before, any of them does. So call it where polling begins, and only there.
void catch_interrupts();
bool interrupted();
void clear_interrupt();

// Waits until standard input can be read or has ended; false if it was an interrupt that came.
bool wait_for_input();

// A bar on standard error while something long runs; nothing where that is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();  // clears the line
  void update(std::uint64_t done, std::uint64_t total, std::string_view unit = {});

 private:
  std::string label_;
  bool shown_ = false;
  bool terminal_;
  double started_;
  double last_ = 0;
};

}  // namespace kvasir::cli
