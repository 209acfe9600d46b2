// The command line as it was typed: which options it gives and under which names, and what is said when it is wrong.
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
  // As main() gets them.
  CommandLine(int argc, const char* const* argv);

  // Translates options of other programs, in commands that have a model: -hf NAME is -m hf:NAME, -cnv is --chat, and
  // what has no counterpart here is dropped. Returns a sentence for each that was dropped. Call it before parsing.
  std::vector<std::string> translate(const CLI::App& program);

  // The arguments, the last first, as CLI::App::parse takes them.
  std::vector<std::string> reversed() const { return {arguments_.rbegin(), arguments_.rend()}; }

  // Whether the option was given by name or place, and not by its environment variable. Call it after parsing.
  bool gives(const CLI::Option& option) const;

  // Whether the option has its value from the file of --config of its command. Call it after parsing.
  bool is_configured(const CLI::Option& option, const CLI::App& command) const;

  // Returns the name by which the user knows the option: as it was typed last, such as "-n" or "--tokens"; its
  // environment variable if that gave the value; of an argument given by its place, the argument's name; otherwise the
  // long name.
  std::string name_of(const CLI::Option& option) const;

  // Returns the error of a command line that takes a long name behind one dash: CLI11 would read -temp as -t emp. Call
  // it before parsing.
  std::optional<std::string> single_dash(const CLI::App& program) const;

  // Throws a CLI::ParseError where the model is given by its place and by name too: one of them is a text, or the last
  // would silently win. Call it once the program is parsed, before its command runs.
  void check_places(const CLI::App& program) const;

  // Return an error as one line for people; the program was parsed. For a Status: its message, in which an option's
  // name replaces that of a setting at the start, followed by the command's other options that would mend it: "...
  // [--kv-memory, --chunk]". For a parse error: what is wrong with the command line, the nearest name if one was
  // misspelt, and where help is.
  std::string error_text(const Status& status, const CLI::App& program) const;
  std::string error_text(const CLI::ParseError& error, const CLI::App& program) const;

  // Returns the error of a command line that names an unknown command along with a request for help or the version;
  // nullopt if it names none. Call it where parsing ended with such a request.
  static std::optional<std::string> unknown_command(const CLI::App& program);

 private:
  // Returns the names by which the option was typed, in order.
  std::vector<std::string> typed_names(const CLI::Option& option) const;

  std::vector<std::string> arguments_;
};

}  // namespace kvasir::cli
