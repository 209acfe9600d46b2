// Cuts a template's source into tokens. Whitespace control is done here: trim_blocks, lstrip_blocks, `-` and `+`.
// Thread-safety: pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jinja/parse/syntax.h"

namespace kvasir::jinja {

struct Token {
  enum class Kind {
    kText,  // of the template, to be written as it is
    kOutputBegin,
    kOutputEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,  // text: what the literal means
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string text;
  Place place;
};

// A failure that has a place already.
struct PlacedFailure {
  Place place;
  std::string message;
};

// Returns the tokens; the last is kEnd. Comments leave none. Throws PlacedFailure.
std::vector<Token> tokenize(std::string_view source);

}  // namespace kvasir::jinja
