// Expressions of JSON texts.
// Thread-safety: pure functions on a Builder.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/automata/builder.h"
#include "kvasir/status.h"

namespace kvasir::grammar {

// How much white space may stand between the tokens of a JSON text.
enum class JsonSpace {
  kNone,
  kBounded,  // one space, or one or two line breaks with at most 20 spaces or tabs behind them
};

// A number in decimal notation, exact: digits * 10^exponent.
struct Decimal {
  bool negative = false;
  std::string digits = "0";  // without leading zeros
  int exponent = 0;
};
// Returns the value of a JSON number. `text`: as JSON writes it. Errors: kInvalidArgument beyond 40 digits or an
// exponent beyond 100.
Result<Decimal> parse_decimal(std::string_view text);
// Checks that a double, or a whole number of 64 bits, holds every number of a JSON text, so that limits and constants
// are enforced as written. Errors: kUnsupported, naming the first other number. REQUIRES: the text is valid JSON.
Status check_numbers(std::string_view json);
// Returns a negative number, 0 or a positive number as `a` is less than, equal to or greater than `b`.
int compare(const Decimal& a, const Decimal& b);
// Returns whether a value is a whole multiple of a step. Errors: kUnsupported for a step of more than 36 digits in the
// units of the value.
Result<bool> is_multiple(const Decimal& value, const Decimal& step);

// The limits of a number; `exclusive` leaves the limit itself out. Texts within limits have at most 20 decimal places,
// or one more than the limits have, or as many as `multiple_of` has.
struct NumberLimits {
  struct Limit {
    Decimal value;
    bool exclusive = false;
  };
  std::optional<Limit> least;
  std::optional<Limit> most;
  std::optional<Decimal> multiple_of;
  bool integer = false;
};

// Each of these adds rules to one builder, at most once, and returns what matches the text.
class JsonText {
 public:
  JsonText(Builder& builder, JsonSpace space) : builder_(builder), space_(space) {}
  // Writes a value that is a string as its characters alone, without quotation marks and escapes, for notations that
  // end it by a mark of their own: `end` does not occur in it. REQUIRES: all values are strings; `end` is not empty.
  static JsonText bare(Builder& builder, std::string end) {
    JsonText text(builder, JsonSpace::kNone);
    text.end_ = std::move(end);
    return text;
  }

  Expr space();  // between two tokens
  Expr comma();  // with what may follow it
  Expr colon();
  Expr value();                     // any JSON value
  Expr object();                    // any JSON object
  Expr array();                     // any JSON array
  Expr string();                    // any JSON string, with its quotes
  Expr string_of(Expr characters);  // a string of these characters, with its quotes
  Expr number();                    // any JSON number
  Expr integer();                   // any JSON number without fraction and exponent
  Expr string_characters();         // characters of a string, without quotes
  // Any character of a string that is in the ranges, as JSON writes it: raw, or escaped where it must be.
  Expr character(std::span<const CharRange> ranges);
  // Exactly this value. Objects keep the order of their keys.
  Expr constant(const nlohmann::ordered_json& value);
  // Exactly this string, with its quotes, or only what is between them. Each text has one form.
  Expr quoted(std::string_view text);
  Expr characters(std::string_view text);

  Builder& builder() { return builder_; }

 private:
  Expr any_character();
  Expr separator(std::string_view mark, std::optional<Rule>& rule);

  Builder& builder_;
  JsonSpace space_;
  std::optional<Rule> value_, object_, array_, string_, number_, comma_, colon_;
  std::optional<Expr> space_expr_, character_;
  std::string end_;  // of bare strings; "": strings are JSON
};

// Returns what matches the numbers within limits, without an exponent. Errors: kInvalidArgument if there is none,
// kUnsupported for a multiple that needs too many states.
Result<Expr> number_within(Builder& builder, const NumberLimits& limits);

}  // namespace kvasir::grammar
