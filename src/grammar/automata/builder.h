// Expressions and rules from which a grammar is made, over the bytes of UTF-8 text and the control tokens of a
// vocabulary. Readers of JSON Schema, GBNF, regular expressions and tool calls write them; compile() (grammar.h) turns
// them into automata.
// Thread-safety: none; a value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/automata/byte_automaton.h"

namespace kvasir::grammar {

// An inclusive range of Unicode code points.
struct CharRange {
  char32_t first = 0;
  char32_t last = 0;
  bool operator==(const CharRange&) const = default;
  auto operator<=>(const CharRange&) const = default;
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

  // `stop`: asks to stop what takes long; see stopped_error().
  explicit Builder(std::stop_token stop = {});
  const std::stop_token& stop() const { return stop_; }

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
  Expr sequence(std::initializer_list<Expr> parts) { return sequence(std::span(parts.begin(), parts.size())); }
  Expr choice(std::initializer_list<Expr> parts) { return choice(std::span(parts.begin(), parts.size())); }
  // `most`: kUnbounded for no limit. REQUIRES: 0 <= least; least <= most or kUnbounded.
  Expr repeat(Expr part, int least, int most);
  Expr optional(Expr part) { return repeat(part, 0, 1); }
  // Matches what both match, or what the first matches and the second does not. An operand that calls a rule, matches a
  // control token or is too large sets failure().
  Expr both(Expr first, Expr second);
  Expr without(Expr first, Expr second);
  // Matches any text of characters in which none of these texts occurs. REQUIRES: none is empty.
  Expr text_without(std::span<const std::string> texts);
  // Matches what an automaton of bytes accepts.
  Expr automaton(ByteAutomaton automaton);

  // `name`: for error messages. REQUIRES: each declared rule is defined once before the grammar is compiled.
  Rule declare(std::string_view name);
  void define(Rule rule, Expr body);
  Expr call(Rule rule);

  // Returns what `part` matches. `otherwise`: the error of the grammar where no text matches it.
  Expr required(Expr part, Status otherwise);

  // Why the grammar cannot be compiled: too many nodes, or operands of both() or without() that are too large. OK so
  // far otherwise; functions return never() once it is set.
  const Status& failure() const { return failure_; }

  // How an expression is made, for the compiler.
  struct Node {
    enum class Kind : std::uint8_t {
      kNothing,
      kNever,
      kLiteral,    // texts()[a]
      kChars,      // ranges()[a]
      kToken,      // texts()[a]
      kSequence,   // lists()[a]
      kChoice,     // lists()[a]
      kRepeat,     // of node a, `least` to `most` times
      kAutomaton,  // automata()[a]
      kCall,       // of rule a
    };
    Kind kind = Kind::kNothing;
    std::uint32_t a = 0;
    int least = 0;
    int most = 0;
  };
  struct NamedRule {
    std::string name;
    std::uint32_t body = 1;
    bool defined = false;
  };
  struct Requirement {
    Rule rule;
    Status otherwise;
  };
  std::span<const Requirement> requirements() const { return requirements_; }
  std::span<const Node> nodes() const { return nodes_; }
  const std::string& text(std::uint32_t index) const { return texts_[index]; }
  std::span<const CharRange> ranges(std::uint32_t index) const { return ranges_[index]; }
  std::span<const std::uint32_t> list(std::uint32_t index) const { return lists_[index]; }
  const ByteAutomaton& automaton(std::uint32_t index) const { return *automata_[index]; }
  std::span<const NamedRule> rules() const { return rules_; }

 private:
  Expr add(Node node, std::size_t bytes = 0);
  Expr combine(Expr first, Expr second, bool keep_second);
  Expr list_of(Node::Kind kind, std::span<const Expr> parts);

  std::vector<Node> nodes_;
  std::vector<std::string> texts_;
  std::vector<std::vector<CharRange>> ranges_;
  std::vector<std::vector<std::uint32_t>> lists_;
  std::vector<std::shared_ptr<const ByteAutomaton>> automata_;
  std::vector<NamedRule> rules_;
  std::vector<Requirement> requirements_;
  std::size_t bytes_ = 0;
  std::size_t combine_steps_ = 100'000'000;  // left for both() and without()
  std::stop_token stop_;
  Status failure_;
};

}  // namespace kvasir::grammar
