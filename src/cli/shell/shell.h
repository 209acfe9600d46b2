// Completion scripts and manual pages, generated from the program's parser.
// Thread-safety: pure functions of the parser.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::cli {

// Returns the script that completes the program's commands, options and policies. `shell`: bash, zsh or fish. Errors:
// kInvalidArgument for any other.
Result<std::string> completion_script(const CLI::App& program, const std::string& shell);

// A manual page in man(7).
struct ManPage {
  std::string name;  // "kvasir-eval-ppl"
  std::string text;
};

// Returns the pages of the program and its commands, in the order of its help.
std::vector<ManPage> man_pages(const CLI::App& program);

// Returns the commands below an app that its help shows.
std::vector<const CLI::App*> shown_commands(const CLI::App& app);
// Returns the options of a command that help shows.
std::vector<const CLI::Option*> shown_options(const CLI::App& app);

}  // namespace kvasir::cli
