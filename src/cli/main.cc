#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "cli/command.h"
#include "cli/models/model_choice.h"
#include "cli/signals.h"
#include "cli/values.h"
#include "kvasir/version.h"

namespace {

// Replaces closed standard streams by a descriptor that refuses reads or writes. Otherwise the next file opened would
// take the stream's number and be read or written in its place.
void occupy_standard_streams() {
  for (const int stream : {0, 1, 2})
    if (::fcntl(stream, F_GETFD) < 0) (void)::open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
}

#ifndef KVASIR_SANITIZED  // sanitizer runtimes are not ready before main()
// Handles a lack of memory before main(), where no exception can be caught.
void end_without_memory() {
  constexpr std::string_view kLine = "kvasir: not enough memory to start; raise the limit (ulimit -v)\n";
  (void)!::write(2, kLine.data(), kLine.size());
  ::_exit(1);
}

void expect_little_memory() {
  std::set_new_handler(end_without_memory);
}

// Runs before the initializers of all libraries.
[[gnu::section(".preinit_array"), gnu::used]] void (*const expect_early)() = expect_little_memory;
#endif

int run_program(int argc, char** argv) {
  using namespace kvasir::cli;
  std::set_new_handler(nullptr);
  occupy_standard_streams();
  CLI::App program{"Kvasir runs large language models on long contexts, in bounded memory.", "kvasir"};
  program.set_version_flag("--version", std::string("kvasir ") + kvasir::kVersion);
  program.require_subcommand(1);
  program.get_formatter()->column_width(34);
  program.footer(
      "Environment: KVASIR_MODEL, KVASIR_THREADS, KVASIR_KV and KVASIR_KV_MEMORY are defaults of --model, --threads,\n"
      "--kv and --kv-memory. KVASIR_CACHE/models has Kvasir's own models. HF_HUB_CACHE, HF_HOME, HF_TOKEN, "
      "HF_ENDPOINT\n"
      "and HF_HUB_OFFLINE act as for the Hugging Face tools, OLLAMA_MODELS as for ollama.\n"
      "'kvasir completion bash' (or zsh, fish) writes a completion script, 'kvasir man' a manual "
      "page.");
  CommandLine line(argc, argv);
  Outcome outcome{line, {}};
  add_run(program, outcome);
  add_serve(program, outcome);
  add_keys(program, outcome);
  add_usage(program, outcome);
  add_eval(program, outcome);
  add_replay(program, outcome);
  add_record(program, outcome);
  add_inspect(program, outcome);
  add_profile(program, outcome);
  add_bench(program, outcome);
  add_demo(program, outcome);
  add_pull(program, outcome);
  add_models(program, outcome);
  add_plan(program, outcome);
  add_policies(program, outcome);
  add_info(program, outcome);
  add_tokenize(program, outcome);
  add_shell(program, outcome);
  add_quiet_option(program);
  check_values(program);
  std::vector<std::string> dropped;  // options of other programs
  program.parse_complete_callback([&] {
    for (const std::string& option : dropped) note("kvasir: {}\n", printable(option, 200));
    line.check_places(program);
    outcome.status = resolve_model_option(program);
    if (!outcome.status.ok()) throw CLI::RuntimeError(1);  // reported below
  });
  ignore_write_signals();
  explain_bus_errors();
  const auto refuse = [](const std::string& problem) { write_error(fmt::format("kvasir: {}\n", problem)); };
  dropped = line.translate(program);
  if (const auto problem = line.single_dash(program)) {
    refuse(*problem);
    return 2;
  }
  try {
    program.parse(line.reversed());
  } catch (const CLI::ParseError& error) {
    if (!outcome.status.ok()) {
      // the command did not begin
    } else if (const auto problem = CommandLine::unknown_command(program); error.get_exit_code() == 0 && problem) {
      refuse(*problem);
      return 2;
    } else if (error.get_exit_code() == 0) {
      std::ostringstream text;
      program.exit(error, text, text);
      outcome.status = print(text.str());
    } else {
      refuse(line.error_text(error, program));
      return 2;
    }
  }
  if (!outcome.status.message().empty()) refuse(line.error_text(outcome.status, program));
  if (outcome.status.code() == kvasir::StatusCode::kCancelled && interrupted() && interrupting_signal() == SIGINT)
    end_by_signal(SIGINT);
  return exit_code(outcome.status);
}

}  // namespace

int main(int argc, char** argv) {
  // Errors that no Status can report: no memory for a string, a thread, or a descriptor of an event loop.
  try {
    return run_program(argc, argv);
  } catch (const std::bad_alloc&) {
    kvasir::cli::write_error(
        "kvasir: the system has no memory left for this; close other programs, use a smaller model, or raise the limit "
        "(ulimit -v)\n");
  } catch (const std::runtime_error& error) {
    kvasir::cli::write_error(
        fmt::format("kvasir: the system refuses a thread or another resource: {}; raise the limits on memory, threads "
                    "and open files (ulimit -v, -u, -n)\n",
                    error.what()));
  }
  return 1;
}
