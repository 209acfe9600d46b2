// Grammars that an answer must match.
// Thread-safety: plain values; a Grammar is immutable.
#pragma once

#include <string>
#include <vector>

namespace kvasir {

// A grammar as a client writes it.
struct GrammarSource {
  enum class Kind {
    kJsonObject,  // any JSON object
    kJsonSchema,  // JSON that a schema (JSON Schema 2020-12) accepts
    kGbnf,        // llama.cpp's notation
    kRegex,       // a regular expression that the whole text matches
    kChoice,      // one of several texts
  };
  Kind kind = Kind::kJsonObject;
  std::string text;                  // the schema, the grammar or the expression
  std::vector<std::string> choices;  // of kChoice
  bool compact = false;              // of JSON: without white space between its tokens; otherwise it is bounded
};

// A grammar compiled for one vocabulary; see ModelText::compile.
class Grammar;

}  // namespace kvasir
