// The configuration file of a command: any of its options can be set there, under its long name. Thread-safety: main
// thread only.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "server/admin/config_file.h"

namespace kvasir::cli {

// The tables [[models]] of a file, each with values of its own options.
struct ConfigTables {
  std::string file;
  std::vector<std::vector<server::ConfigValue>> tables;
};

// Adds --config FILE. A value of the file counts if neither the command line nor the environment sets the option.
// REQUIRES: called before the command's other options are added, since they are parsed in that order.
void add_config_option(CLI::App& command);
// As above, for a file that may have tables [[models]]; stores them. The option --models, which help does not show,
// counts them.
void add_config_option(CLI::App& command, ConfigTables& tables);
// Sets options from the values of one table. Throws CLI::ParseError with the place of a value that is wrong.
void apply_config(CLI::App& options, const std::string& file, const std::vector<server::ConfigValue>& values);

// Adds --print-config, which prints the options' values as such a file instead of running the command. Call it after
// all other options of the command were added.
// `tables`: those of the command; null if it has none.
void add_print_config_option(CLI::App& command, const ConfigTables* tables = nullptr);

}  // namespace kvasir::cli
