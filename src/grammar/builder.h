// Expressions and rules from which a grammar is made, over the bytes of UTF-8 text and the control tokens of a
// vocabulary. Readers of JSON Schema, GBNF, regular expressions and tool calls write them; Grammar::compile turns them
// into automata.
// Thread-safety: none; a value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::grammar {

// An inclusive range of Unicode code points.
struct CharRange {
  char32_t first = 0;
  char32_t last = 0;
};
inline constexpr char32_t kLastChar = 0x10FFFF;

// A node of a Builder.
struct Expr {
  std::uint32_t index = 0;
};

// A rule of a Builder: an expression that others call by name, possibly from within itself.
struct Rule {
  std::uint32_t index = 0;
};

class Builder {
 public:
  static constexpr int kUnbounded = -1;

  Builder();

  Expr nothing() const { return {0}; }  // matches the empty text
  Expr never() const { return {1}; }    // matches no text
  Expr literal(std::string_view bytes);
  // Matches one character of the ranges, in UTF-8. Surrogates are left out.
  Expr one_of(std::span<const CharRange> ranges);
  Expr any_char() { return one_of(std::array{CharRange{0, kLastChar}}); }
  // Matches the token of this name. It is matched by its bytes if the vocabulary has no control token of that name.
  Expr token(std::string_view name);
  Expr sequence(std::span<const Expr> parts);
  Expr choice(std::span<const Expr> parts);
  // `most`: kUnbounded for no limit. REQUIRES: 0 <= least; least <= most or kUnbounded.
  Expr repeat(Expr part, int least, int most);
  Expr optional(Expr part) { return repeat(part, 0, 1); }
  // Matches what both match, or what the first matches and the second does not. REQUIRES: neither calls a rule nor
  // matches a control token.
  Expr both(Expr first, Expr second);
  Expr without(Expr first, Expr second);
  // Matches any text of characters in which none of these texts occurs. REQUIRES: none is empty.
  Expr text_without(std::span<const std::string> texts);

  // `name`: for error messages. REQUIRES: each declared rule is defined once before the grammar is compiled.
  Rule declare(std::string_view name);
  void define(Rule rule, Expr body);
  Expr call(Rule rule);
};

}  // namespace kvasir::grammar
