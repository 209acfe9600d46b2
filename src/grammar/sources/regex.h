// Regular expressions as expressions of a Builder.
// Thread-safety: pure functions.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "grammar/automata/builder.h"
#include "kvasir/status.h"

namespace kvasir::grammar {

struct RegexOptions {
  // The expression matches the whole text; otherwise a part of it, unless it is anchored by ^ and $.
  bool whole = true;
  // Makes the expression of one character of some ranges; empty: Builder::one_of. JSON strings escape some characters.
  std::function<Expr(std::span<const CharRange>)> character;
};

// Supports what JSON Schema's patterns use: literals, ".", classes, groups, alternatives, greedy and lazy repetitions,
// the escapes \d \w \s and their negations (each only what engines agree on: \d is ASCII, \D is no digit of Unicode),
// \p{...} with a general category, \x, \u, and the anchors ^ and $ at the ends of alternatives. Case-sensitive. "."
// matches all but line breaks (LF, CR, U+2028, U+2029). Errors: kUnsupported by name for look-around, back references,
// flags, word boundaries, possessive repetitions and other anchors; kInvalidArgument with the offset for syntax errors.
Result<Expr> parse_regex(Builder& builder, std::string_view expression, const RegexOptions& options = {});

}  // namespace kvasir::grammar
