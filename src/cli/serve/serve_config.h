// The configuration file of a command: any of its options can be set there, under its long name. Thread-safety: main
// thread only.
#pragma once

#include <CLI/CLI.hpp>

namespace kvasir::cli {

// Adds --config FILE. A value of the file counts if neither the command line nor the environment sets the option.
// REQUIRES: called before the command's other options are added, since they are parsed in that order.
void add_config_option(CLI::App& command);

// Adds --print-config, which prints the options' values as such a file instead of running the command. Call it after
// all other options of the command were added.
void add_print_config_option(CLI::App& command);

}  // namespace kvasir::cli
