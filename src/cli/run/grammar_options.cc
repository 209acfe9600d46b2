#include "cli/run/grammar_options.h"

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

}  // namespace

void add_grammar_options(CLI::App& command, GrammarOptions& options) {
  command
      .add_option("--json-schema", options.json_schema,
                  "Write JSON that this schema accepts: the schema, or a file; {}: any JSON")
      ->type_name("JSON|FILE");
  command.add_option("--grammar", options.gbnf, "Write a text of this grammar in GBNF: the grammar, or a file")
      ->type_name("GBNF|FILE");
  command.add_option("--regex", options.regex, "Write a text that this regular expression matches");
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
    const std::size_t first = options.json_schema.find_first_not_of(" \t\r\n");
    const bool json =
        first != std::string::npos && (options.json_schema[first] == '{' || options.json_schema == "true");
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
