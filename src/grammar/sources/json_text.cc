#include "grammar/sources/json_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/utf8.h"

namespace kvasir::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostDigits = 40;
constexpr int kMostExponent = 2;  // digits: with kMostDigits in front a double still holds the number
constexpr int kMostIndent = 40;

Expr range(Builder& builder, char32_t first, char32_t last) {
  return builder.one_of(std::array{CharRange{first, last}});
}

Expr any_of(Builder& builder, std::string_view all) {
  std::vector<CharRange> ranges;
  for (const char c : all) ranges.push_back({static_cast<char32_t>(c), static_cast<char32_t>(c)});
  return builder.one_of(ranges);
}

std::array<CharRange, 3> hex_digits() {
  return {CharRange{'0', '9'}, CharRange{'A', 'F'}, CharRange{'a', 'f'}};
}

// Characters that stand for themselves in a string. DEL is left out: terminals act on it.
constexpr std::array kRaw = {CharRange{0x20, 0x21}, CharRange{0x23, 0x5B}, CharRange{0x5D, 0x7E},
                             CharRange{0x80, kLastChar}};

// Returns the escape of a character that does not stand for itself.
std::string escape_of(char32_t c) {
  switch (c) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    default: return fmt::format("\\u{:04x}", static_cast<unsigned>(c));
  }
}

// Returns a text as it is written between the quotes of a string.
std::string written(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool raw = static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\' && c != 0x7F;
    out += raw ? std::string(1, c) : escape_of(static_cast<char32_t>(c));
  }
  return out;
}

Expr digits(Builder& builder, int least, int most) {
  return builder.repeat(range(builder, '0', '9'), least, most);
}

Expr whole(Builder& builder) {
  return builder.sequence(
      {builder.optional(builder.literal("-")),
       builder.choice(
           {builder.literal("0"), builder.sequence({range(builder, '1', '9'), digits(builder, 0, kMostDigits - 1)})})});
}

}  // namespace

Expr JsonText::space() {
  if (space_ == JsonSpace::kNone) return builder_.nothing();
  if (!space_expr_) {
    const Expr indent = builder_.repeat(any_of(builder_, " \t"), 0, kMostIndent);
    space_expr_ = builder_.optional(builder_.choice(
        {builder_.literal(" "),
         builder_.sequence({builder_.optional(builder_.literal("\r")), builder_.literal("\n"), indent})}));
  }
  return *space_expr_;
}

// A rule of its own, so that the states of the white space are there once, not behind each property of an object.
Expr JsonText::separator(std::string_view mark, std::optional<Rule>& rule) {
  if (space_ == JsonSpace::kNone) return builder_.literal(mark);
  if (!rule) {
    rule = builder_.declare("a separator");
    builder_.define(*rule, builder_.sequence({builder_.literal(mark), space()}));
  }
  return builder_.call(*rule);
}

Expr JsonText::comma() {
  return separator(",", comma_);
}

Expr JsonText::colon() {
  return separator(":", colon_);
}

Expr JsonText::any_character() {
  if (!end_.empty()) return builder_.any_char();
  if (character_) return *character_;
  const auto hex = hex_digits();
  const Expr digit = builder_.one_of(hex);
  const Expr d = any_of(builder_, "dD");
  const Expr not_d = any_of(builder_, "0123456789abcefABCEF");
  const Expr low = range(builder_, '0', '7');
  const Expr high_half = builder_.sequence({d, any_of(builder_, "89abAB"), digit, digit});
  const Expr low_half = builder_.sequence({d, any_of(builder_, "cdefCDEF"), digit, digit});
  const Expr one_unit =
      builder_.choice({builder_.sequence({not_d, digit, digit, digit}), builder_.sequence({d, low, digit, digit})});
  const Expr escaped = builder_.choice(
      {any_of(builder_, "\"\\/bfnrt"),
       builder_.sequence(
           {builder_.literal("u"),
            builder_.choice({one_unit, builder_.sequence({high_half, builder_.literal("\\u"), low_half})})})});
  character_ = builder_.choice({builder_.one_of(kRaw), builder_.sequence({builder_.literal("\\"), escaped})});
  return *character_;
}

Expr JsonText::string_characters() {
  return any_character();
}

Expr JsonText::character(std::span<const CharRange> ranges) {
  if (!end_.empty()) return builder_.one_of(ranges);
  std::vector<CharRange> raw;
  std::vector<Expr> all;
  for (const CharRange& range : ranges) {
    for (const CharRange& allowed : kRaw)
      raw.push_back({std::max(range.first, allowed.first), std::min(range.last, allowed.last)});
    for (char32_t c = range.first; c <= std::min<char32_t>(range.last, 0x7F); ++c)
      if (c < 0x20 || c == '"' || c == '\\' || c == 0x7F) all.push_back(builder_.literal(escape_of(c)));
  }
  all.push_back(builder_.one_of(raw));
  return builder_.choice(all);
}

Expr JsonText::string() {
  if (!end_.empty()) return builder_.text_without(std::array{end_});
  if (!string_) {
    string_ = builder_.declare("a JSON string");
    builder_.define(*string_, builder_.sequence(
                                  {builder_.repeat(any_character(), 0, Builder::kUnbounded), builder_.literal("\"")}));
  }
  // The quote that opens a string stays in the caller, which tells strings from other values by it.
  return builder_.sequence({builder_.literal("\""), builder_.call(*string_)});
}

Expr JsonText::string_of(Expr characters) {
  if (!end_.empty()) return builder_.both(characters, string());
  const Rule rule = builder_.declare("a string of the schema");
  builder_.define(rule, builder_.sequence({characters, builder_.literal("\"")}));
  return builder_.sequence({builder_.literal("\""), builder_.call(rule)});
}

Expr JsonText::integer() {
  return whole(builder_);
}

Expr JsonText::number() {
  const Expr fraction = builder_.sequence({builder_.literal("."), digits(builder_, 1, kMostDigits)});
  const Expr sign = builder_.optional(any_of(builder_, "+-"));
  const Expr exponent = builder_.sequence({any_of(builder_, "eE"), sign, digits(builder_, 1, kMostExponent)});
  return builder_.sequence({whole(builder_), builder_.optional(fraction), builder_.optional(exponent)});
}

Expr JsonText::object() {
  if (!object_) {
    object_ = builder_.declare("a JSON object");
    const Expr member = builder_.sequence({string(), builder_.literal(":"), space(), value()});
    const Expr more = builder_.sequence({builder_.literal(","), space(), member});
    const Expr members = builder_.sequence({member, builder_.repeat(more, 0, Builder::kUnbounded), space()});
    builder_.define(*object_, builder_.sequence(
                                  {builder_.literal("{"), space(), builder_.optional(members), builder_.literal("}")}));
  }
  return builder_.call(*object_);
}

Expr JsonText::array() {
  if (!array_) {
    array_ = builder_.declare("a JSON array");
    const Expr more = builder_.sequence({builder_.literal(","), space(), value()});
    const Expr items = builder_.sequence({value(), builder_.repeat(more, 0, Builder::kUnbounded), space()});
    builder_.define(
        *array_, builder_.sequence({builder_.literal("["), space(), builder_.optional(items), builder_.literal("]")}));
  }
  return builder_.call(*array_);
}

Expr JsonText::value() {
  if (!value_) {
    value_ = builder_.declare("a JSON value");
    builder_.define(*value_, builder_.choice({object(), array(), string(), number(), builder_.literal("true"),
                                              builder_.literal("false"), builder_.literal("null")}));
  }
  return builder_.call(*value_);
}

Expr JsonText::characters(std::string_view text) {
  if (!end_.empty()) return text.find(end_) == std::string_view::npos ? builder_.literal(text) : builder_.never();
  return builder_.literal(written(text));
}

Expr JsonText::quoted(std::string_view text) {
  if (!end_.empty()) return characters(text);
  return builder_.literal('"' + written(text) + '"');
}

Expr JsonText::constant(const Json& value) {
  if (value.is_string()) return quoted(value.get_ref<const std::string&>());
  if (!value.is_structured()) return builder_.literal(value.dump());
  std::vector<Expr> parts = {builder_.literal(value.is_object() ? "{" : "["), space()};
  bool first = true;
  for (const auto& [key, each] : value.items()) {
    if (!std::exchange(first, false)) parts.insert(parts.end(), {builder_.literal(","), space()});
    if (value.is_object()) parts.insert(parts.end(), {quoted(key), builder_.literal(":"), space()});
    parts.push_back(constant(each));
  }
  if (!first) parts.push_back(space());
  parts.push_back(builder_.literal(value.is_object() ? "}" : "]"));
  return builder_.sequence(parts);
}

}  // namespace kvasir::grammar
