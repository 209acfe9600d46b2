// The command line as typed: which options it gives, under which names, and the messages about its errors.
// Thread-safety: constant after translate.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::cli {

class CommandLine {
 public:
  // Takes the arguments of main().
  CommandLine(int argc, const char* const* argv);

  // Translates options of other programs, in commands that have a model: -hf NAME becomes -m hf:NAME, -cnv becomes
  // --chat; options without a counterpart are dropped. Returns a sentence about each dropped option. Call it before
  // parsing.
  std::vector<std::string> translate(const CLI::App& program);

  // The arguments in reverse order, as CLI::App::parse takes them.
  std::vector<std::string> reversed() const { return {arguments_.rbegin(), arguments_.rend()}; }

  // Returns whether the option was given by name or place, not by its environment variable. Call it after parsing.
  bool gives(const CLI::Option& option) const;

  // Returns whether the option's value comes from the command's --config file. Call it after parsing.
  bool is_configured(const CLI::Option& option, const CLI::App& command) const;

  // Returns the name by which the user knows the option: as last typed, such as "-n" or "--tokens"; its environment
  // variable if that set it; the argument's name if it was given by place; otherwise the long name.
  std::string name_of(const CLI::Option& option) const;

  // Returns an error if a long name follows one dash: CLI11 would read -temp as -t emp. Call it before parsing.
  std::optional<std::string> single_dash(const CLI::App& program) const;

  // Throws a CLI::ParseError if the model is given both by place and by name: one of them may be a text, and the last
  // would silently win. Call it after parsing, before the command runs.
  void check_places(const CLI::App& program) const;

  // Return an error as one line for people, after parsing. For a Status: its message with the setting at its start
  // replaced by the option's name, followed by the command's other options that would mend it: "... [--kv-memory,
  // --chunk]". For a parse error: the problem, the nearest name if one was misspelt, and how to get help.
  std::string error_text(const Status& status, const CLI::App& program) const;
  std::string error_text(const CLI::ParseError& error, const CLI::App& program) const;

  // Returns an error if an unknown command was named along with a request for help or the version; else nullopt. Call
  // it when parsing ended with such a request.
  static std::optional<std::string> unknown_command(const CLI::App& program);

 private:
  // Returns the names by which the option was typed, in order.
  std::vector<std::string> typed_names(const CLI::Option& option) const;

  std::vector<std::string> arguments_;
};

}  // namespace kvasir::cli
