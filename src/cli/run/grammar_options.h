// Options that restrict an answer to a grammar: --json-schema, --grammar, --regex and --choice.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/grammar.h"
#include "kvasir/status.h"

namespace kvasir::cli {

struct GrammarOptions {
  std::string json_schema;  // JSON, or the name of a file
  std::string gbnf;         // a grammar, or the name of a file
  std::string regex;
  std::vector<std::string> choices;

  bool given() const { return !json_schema.empty() || !gbnf.empty() || !regex.empty() || !choices.empty(); }
};

void add_grammar_options(CLI::App& command, GrammarOptions& options);

// Returns the grammar that the options name, with files read. Errors: of the file; kInvalidArgument if there are
// several. REQUIRES: given().
Result<GrammarSource> grammar_source(const GrammarOptions& options);

}  // namespace kvasir::cli
