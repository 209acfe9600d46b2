// Shared by all commands: registration, exit codes, common options, output.
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.h"
#include "cli/time_left.h"
#include "kvasir/engine.h"
#include "kvasir/options.h"
#include "kvasir/status.h"

namespace kvasir::cli {

using Json = nlohmann::ordered_json;

// Returns 0: done; 1: the run failed; 2: the command line or an input was wrong.
int exit_code(const Status& status);

// The input of a command, and the status of its run.
struct Outcome {
  const CommandLine& line;
  Status status;
};

// One function per command, each in its own file; each adds its subcommand to the program.
void add_run(CLI::App& program, Outcome& outcome);
void add_serve(CLI::App& program, Outcome& outcome);
void add_keys(CLI::App& program, Outcome& outcome);
void add_usage(CLI::App& program, Outcome& outcome);
void add_info(CLI::App& program, Outcome& outcome);
void add_tokenize(CLI::App& program, Outcome& outcome);
void add_plan(CLI::App& program, Outcome& outcome);
void add_policies(CLI::App& program, Outcome& outcome);
void add_eval(CLI::App& program, Outcome& outcome);
void add_replay(CLI::App& program, Outcome& outcome);
void add_record(CLI::App& program, Outcome& outcome);
void add_inspect(CLI::App& program, Outcome& outcome);
void add_profile(CLI::App& program, Outcome& outcome);
void add_bench(CLI::App& program, Outcome& outcome);
void add_demo(CLI::App& program, Outcome& outcome);
void add_pull(CLI::App& program, Outcome& outcome);
void add_models(CLI::App& program, Outcome& outcome);
void add_shell(CLI::App& program, Outcome& outcome);  // completion and man, which help does not show

// Adds -m (or the first argument by place) and --offline. `path` is as typed until resolve_model_option().
void add_model_option(CLI::App& command, std::string& path);
std::string kv_type_help();
// Adds --kv-type, whose default is what `kv_type` is. Where that is "auto", KVASIR_KV_TYPE may set another.
void add_kv_type_option(CLI::App& command, std::string& kv_type);
// Adds --demote, --demote-dir and --demote-size.
void add_demote_options(CLI::App& command, std::string& demote, EngineOptions& options);
// Sets the engine's folder for demotion if a policy demotes or offloads to a file and none was named.
Status add_demote_dir(const std::string& policy, EngineOptions& options);
// Adds --demote to a policy, then acts as add_demote_dir(). Errors: kInvalidArgument if there is no policy to add it
// to.
Status apply_demote(const std::string& demote, std::string& policy, EngineOptions& options);
// Adds --lora FILE[:SCALE], which may be repeated.
CLI::Option* add_lora_option(CLI::App& command, std::vector<AdapterFile>& adapters);
void add_engine_options(CLI::App& command, EngineOptions& options);  // -m, --lora, -t, --isa, --kv-type, --page
// As above, with --kv-type repeatable.
void add_engine_options(CLI::App& command, EngineOptions& options, std::vector<std::string>& kv_types);
void add_chunk_option(CLI::App& command, EngineOptions& options);      // --chunk
void add_kv_memory_option(CLI::App& command, EngineOptions& options);  // --kv-memory
// Adds --draft, whose value may also be a file: then `model` gets it, and `draft` is "model".
void add_draft_option(CLI::App& command, std::string& draft, std::string& model);
void add_draft_model_option(CLI::App& command, std::string& model);  // --draft-model
// Adds --kv, one policy. Refuses an empty name, which would mean the default.
CLI::Option* add_policy_option(CLI::App& command, std::string& policy, const std::string& help);
// Converts a size such as 512MiB or 2GiB to bytes.
CLI::Validator to_bytes();
// Adds an option for such a size.
CLI::Option* add_bytes_option(CLI::App& command, const std::string& name, std::uint64_t& bytes,
                              const std::string& help);

// Adds --quiet, which silences note() and ProgressBar, to every command. Call it after all commands are added.
void add_quiet_option(CLI::App& program);

// Returns whether standard output and standard error are one terminal, pipe or file.
bool streams_are_one();

// Write to standard error: an error always, a note unless --quiet was given. Both start a new line behind text of
// print() that ends within one, if it went to the same place. Both ignore failures: a full disk under a log file does
// not end a run.
void write_error(std::string_view text);
void write_note(std::string_view text);

template <class... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  write_note(fmt::format(format, std::forward<Args>(args)...));
}

// Writes to standard output, unbuffered. Errors: kResourceExhausted for a full disk; kCancelled for a closed pipe
// (without a message), and for an interrupt while the reader took no more; otherwise kIo.
Status print(std::string_view text);
Status print_json(const Json& json);

// Warns if --kv-memory exceeds the memory that the system has left.
void note_kv_memory(std::uint64_t kv_memory);

// Warns if the kernels are plain C++ although not asked for. `asked`: the value of --isa; `used`: the kernels.
void note_slow_kernels(std::string_view asked, std::string_view used);

// Prints the policy's remark about a model with `kv_heads` KV heads (DependsOnModel::remark).
void note_policy(const std::string& policy, int kv_heads);

// Warns if a query saw more tokens than the model was trained for. `kept_max`: most tokens in the cache during a pass.
// Tokens of a chunk that a policy by range hides from later queries are in it, but not counted. `saw`: the verb.
void note_beyond_context(const std::string& policy, std::int64_t kept_max, std::int64_t context,
                         std::string_view saw = "saw");
// Gives the same warning before `tokens` tokens are read, if that is known by then. `remedy`: ends the line. Returns
// whether it warned.
bool note_will_see_beyond(const std::string& policy, std::int64_t tokens, std::int64_t context,
                          std::string_view remedy);
// Returns whether note_beyond_context could warn of a policy by range with a bound.
bool may_see_beyond(const std::string& policy, std::int64_t context);

// Returns whether a policy keeps the first tokens of a text and the newest, and drops those between.
bool drops_ranges(const std::string& policy);
// Returns whether dropped tokens move to demoted pages, which later tokens may read again.
bool demotes(const std::string& policy);

std::string human_bytes(std::uint64_t bytes);  // "3.4 MiB"

// Checks that an output file is not an input. Errors: kInvalidArgument.
Status check_output(const std::string& path, std::span<const std::string> inputs);

// Checks that a session can be written to `path` and replaces nothing but a session file. Errors: kInvalidArgument;
// those of check_replaceable.
Status check_session_output(const std::string& path, std::span<const std::string> inputs);

// Returns `path` if it is a file; for a folder, its files whose names end in `extension`, sorted by name. `what`: their
// content, for messages. Errors: kIo; kInvalidArgument for a folder without such a file.
Result<std::vector<std::string>> files_at(const std::string& path, std::string_view extension, std::string_view what);

// Formats ascending numbers as ranges, such as "0-3 7 40-47", cut at a space before `limit` bytes.
std::string id_ranges(std::span<const std::int64_t> ids, std::size_t limit);

// Escapes control characters and bytes that are not valid UTF-8, so that the text is safe on one line of a terminal.
// Cuts it at the first character boundary after `limit` bytes.
std::string printable(std::string_view text, std::size_t limit);

// Returns the seconds of a monotonic clock.
double steady_seconds();

// Returns the work of reading a text under a policy, in windows of `window` tokens unless that is 0.
ReadingWork reading_work(const std::string& policy, std::int64_t window = 0);

// Returns the number of tokens that a policy keeps of `tokens` tokens read, with those it never drops; nullopt if it
// depends on the text.
std::optional<std::int64_t> kept_behind_prompt(const std::string& policy, std::int64_t tokens);

// A progress bar on standard error; occasional lines if that is not a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label, const ReadingWork& work = {});
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();  // clears the line
  // Sets the work done before the bar was made, which the estimate of the time left leaves out.
  void start_at(std::uint64_t done) { before_ = done; }
  void update(std::uint64_t done, std::uint64_t total, std::string_view unit = {});

 private:
  std::string label_;
  std::uint64_t before_ = 0;
  bool shown_ = false;
  bool terminal_;
  double started_;
  double last_ = 0;
  TimeLeft left_;
  LineTimes lines_;
};

}  // namespace kvasir::cli
