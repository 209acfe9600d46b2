#include <fcntl.h>

#include <sstream>
#include <string_view>

#include "cli/command.h"
#include "kvasir/version.h"

namespace {

// Replaces closed standard streams by a descriptor that refuses reads or writes. Otherwise the next file opened would
// take the stream's number, and be read or written in its place.
void occupy_standard_streams() {
  for (const int stream : {0, 1, 2})
    if (::fcntl(stream, F_GETFD) < 0) (void)::open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvasir::cli;
  occupy_standard_streams();
  CLI::App program{"Kvasir runs large language models on long contexts, in bounded memory.", "kvasir"};
  program.set_version_flag("--version", std::string("kvasir ") + kvasir::kVersion);
  program.require_subcommand(1);
  program.get_formatter()->column_width(34);
  Outcome outcome;
  add_run(program, outcome);
  add_eval(program, outcome);
  add_replay(program, outcome);
  add_record(program, outcome);
  add_inspect(program, outcome);
  add_bench(program, outcome);
  add_demo(program, outcome);
  add_plan(program, outcome);
  add_policies(program, outcome);
  add_info(program, outcome);
  add_tokenize(program, outcome);
  check_values(program);
  ignore_write_signals();
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (const auto problem = unknown_command(program); error.get_exit_code() == 0 && problem) {
      note("kvasir: {}\n", *problem);
      return 2;
    }
    if (error.get_exit_code() == 0) {
      std::ostringstream text;
      program.exit(error, text, text);
      outcome.status = print(text.str());
    } else {
      note("kvasir: {}\n", error_text(error, program));
      return 2;
    }
  }
  if (!outcome.status.message().empty()) note("kvasir: {}\n", error_text(outcome.status, program));
  if (outcome.signal != 0) end_by_signal(outcome.signal);
  return exit_code(outcome.status);
}
