// A configuration file: TOML whose keys are the names of command-line options.
//
//   port = 8080
//   kv-memory = "2GiB"
//   vllm-metrics = true
//
//   [[models]]
//   path = "hf:USER/REPO"
//
// This part knows TOML and no option: the caller checks the names.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::server {

struct ConfigValue {
  enum class Type { kFlag, kInteger, kNumber, kText, kTexts, kTables };
  std::string name;
  Type type = Type::kText;
  std::vector<std::string> texts;  // kTexts: all elements; others: one, such as "true", "8080" or "0.5"
  int line = 0, column = 0;        // of the name, from 1
  // kTables: the values of each table of this name, in their order.
  std::vector<std::vector<ConfigValue>> tables = {};
};

// Returns "FILE:LINE:COLUMN: ", the beginning of a message about a value.
std::string config_place(std::string_view file, int line, int column);

// Parses a file's text; returns its values in their order in the file. `file`: its name, for messages. Errors:
// kInvalidArgument with the place for text that is not TOML, a duplicate key, a table other than one of a list
// ([[NAME]]), a date, or a list of anything but strings.
Result<std::vector<ConfigValue>> parse_config(std::string_view text, std::string_view file);

// Returns a text as a TOML string, quotes included. Bytes that are not valid UTF-8 become U+FFFD.
std::string toml_string(std::string_view text);

}  // namespace kvasir::server
