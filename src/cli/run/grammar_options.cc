#include "cli/run/grammar_options.h"

#include <fmt/core.h>

#include <string_view>
#include <utility>

#include "base/status.h"
#include "cli/text_input.h"

namespace kvasir::cli {
namespace {

using Kind = GrammarSource::Kind;

// Returns a text that an option gives: itself where it `begins` as such a text does, otherwise that of a file.
Result<std::string> text_or_file(const std::string& given, bool begins) {
  return begins ? Result<std::string>(given) : read_text_file(given);
}

// Whether a text is a JSON value, or the start of one, rather than the name of a file.
bool begins_json(const std::string& text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string::npos) return false;
  if (text[first] == '{' || text[first] == '[' || text[first] == '"') return true;
  const std::string word = text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
  return word == "true" || word == "false" || word == "null";
}

// An empty constraint would be none.
CLI::Validator not_empty(const std::string& what) {
  return CLI::Validator(
      [what](std::string& text) { return text.empty() ? fmt::format("it is empty; give {}, or omit it", what) : ""; },
      "");
}

}  // namespace

void add_grammar_options(CLI::App& command, GrammarOptions& options) {
  command
      .add_option("--json-schema", options.json_schema,
                  "Write JSON that this schema accepts: the schema, or a file; {}: any JSON")
      ->check(not_empty("a schema, such as {}"))
      ->type_name("JSON|FILE");
  command.add_option("--grammar", options.gbnf, "Write a text of this grammar in GBNF: the grammar, or a file")
      ->check(not_empty("a grammar, such as 'root ::= \"yes\" | \"no\"'"))
      ->type_name("GBNF|FILE");
  command.add_option("--regex", options.regex, "Write a text that this regular expression matches")
      ->check(not_empty("a regular expression"));
  command.add_option("--choice", options.choices, "Write one of these; give it several times")
      ->take_all()
      ->allow_extra_args(false);
}

Result<GrammarSource> grammar_source(const GrammarOptions& options) {
  const int given = (options.json_schema.empty() ? 0 : 1) + (options.gbnf.empty() ? 0 : 1) +
                    (options.regex.empty() ? 0 : 1) + (options.choices.empty() ? 0 : 1);
  if (given > 1)
    return invalid_argument("--json-schema, --grammar, --regex and --choice exclude each other; give one of them");
  GrammarSource source;
  if (!options.json_schema.empty()) {
    source.kind = Kind::kJsonSchema;
    const bool json = begins_json(options.json_schema);
    KVASIR_ASSIGN_OR_RETURN(source.text, text_or_file(options.json_schema, json));
  } else if (!options.gbnf.empty()) {
    source.kind = Kind::kGbnf;
    KVASIR_ASSIGN_OR_RETURN(source.text, text_or_file(options.gbnf, options.gbnf.find("::=") != std::string::npos));
  } else if (!options.regex.empty()) {
    source.kind = Kind::kRegex;
    source.text = options.regex;
  } else {
    source.kind = Kind::kChoice;
    source.choices = options.choices;
  }
  return source;
}

}  // namespace kvasir::cli
