#include <fmt/core.h>

#include "cli/command.h"
#include "kvasir/version.h"

int main(int argc, char** argv) {
  using namespace kvasir::cli;
  CLI::App program{"Kvasir runs large language models on long contexts, in bounded memory.", "kvasir"};
  program.set_version_flag("--version", std::string("kvasir ") + kvasir::kVersion);
  program.require_subcommand(1);
  program.get_formatter()->column_width(34);
  Outcome outcome;
  add_run(program, outcome);
  add_eval(program, outcome);
  add_bench(program, outcome);
  add_plan(program, outcome);
  add_policies(program, outcome);
  add_info(program, outcome);
  add_tokenize(program, outcome);
  catch_interrupts();
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);
    std::string command;
    for (const CLI::App* sub : program.get_subcommands()) command += " " + sub->get_name();
    fmt::print(stderr, "kvasir: {} (see 'kvasir{} --help')\n", printable(error.what(), 300), command);
    return 2;
  }
  if (!outcome.status.ok()) fmt::print(stderr, "kvasir: {}\n", outcome.status.message());
  return exit_code(outcome.status);
}
