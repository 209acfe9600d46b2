// Filters of single values; those of sequences are in sequence_filters.cc.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "jinja/arithmetic.h"
#include "jinja/calls.h"
#include "jinja/failure.h"
#include "jinja/search.h"

namespace kvasir::jinja {
namespace {

constexpr std::string_view kLineEnds[] = {"\n",   "\r",   "\v",       "\f",           "\x1C",
                                          "\x1D", "\x1E", "\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"};

// str.splitlines() as offsets of a line and sizes.
std::vector<Range> lines_of(std::string_view text) {
  std::vector<Range> lines;
  std::size_t start = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const auto end = std::find_if(std::begin(kLineEnds), std::end(kLineEnds),
                                  [&](std::string_view each) { return rest.starts_with(each); });
    if (end == std::end(kLineEnds)) {
      ++at;
      continue;
    }
    lines.push_back({start, at - start});
    at += rest.starts_with("\r\n") ? 2 : end->size();
    start = at;
  }
  if (start < text.size()) lines.push_back({start, text.size() - start});
  return lines;
}

Value indent(Heap& heap, const Value& value, const Given& given) {
  const auto bound = bind("indent", given, {"width", "first", "blank"});
  Text space;
  if (bound[0] != nullptr && bound[0]->text() != nullptr) {
    space = *bound[0]->text();
  } else {
    const std::int64_t width = std::max<std::int64_t>(whole(bound[0], 4), 0);
    heap.require(static_cast<std::size_t>(width));
    space = Text(std::string(static_cast<std::size_t>(width), ' '), Origin::kTemplate);
  }
  const Text& text = string_argument(&value, "indent");
  heap.step(text.size() / 2);
  const std::vector<Range> lines = lines_of(text.bytes() + "\n");
  Text indented;
  if (flag(bound[1], false)) indented.append(space);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    heap.step(lines[i].size / 64 + 1);
    heap.copy(space);
    heap.require(indented.size() + space.size() + lines[i].size);
    if (i > 0) indented.append("\n", Origin::kTemplate);
    if (i > 0 && (lines[i].size > 0 || flag(bound[2], false))) indented.append(space);
    indented.append(text, lines[i].from, lines[i].size);
  }
  return heap.string(std::move(indented));
}

// jinja2's title: words are separated by white space, '-', '(', '{', '[' and '<'.
Value title(Heap& heap, const Value& value) {
  const Text text = to_text(heap, value);
  const std::string_view bytes = text.bytes();
  Text titled;
  bool starts = true;
  for (std::size_t at = 0; at < bytes.size();) {
    heap.step();
    const std::size_t size = character_size(bytes.substr(at));
    titled.append(change_case(text.substring(at, size), starts ? Case::kUpper : Case::kLower));
    const std::string_view character = bytes.substr(at, size);
    starts = is_space(character) || std::string_view("-({[<").find(character) != std::string_view::npos;
    at += size;
  }
  return heap.string(std::move(titled));
}

// The digits of a number in Python's notation: without white space around and single underscores between digits.
std::optional<std::string> digits_of(const Text& text) {
  const Range range = strip(text.bytes(), nullptr, true, true);
  const std::string_view bytes = std::string_view(text.bytes()).substr(range.from, range.size);
  const auto digit = [&](std::size_t i) { return i < bytes.size() && bytes[i] >= '0' && bytes[i] <= '9'; };
  std::string digits;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '_') {
      if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
    } else {
      digits += bytes[i];
    }
  }
  if (digits.starts_with('+')) digits.erase(0, 1);
  if (digits.starts_with("+") || digits.find("nan(") != std::string::npos) return std::nullopt;
  return digits;
}

std::optional<double> parse_real(const Text& text) {
  const auto digits = digits_of(text);
  if (!digits) return std::nullopt;
  double value = 0;
  const char* end = digits->data() + digits->size();
  const auto result = std::from_chars(digits->data(), end, value);
  if (result.ptr != end || digits->empty() || result.ec == std::errc::invalid_argument) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) return std::strtod(digits->c_str(), nullptr);
  return value;
}

std::int64_t truncate(double value) {
  if (!std::isfinite(value) || std::fabs(value) >= 9.2e18) fail("the number does not fit 64 bits");
  return static_cast<std::int64_t>(value);
}

Value to_int(const Value& value, const Given& given) {
  const auto bound = bind("int", given, {"default", "base"});
  require_defined(value);
  const Value otherwise = bound[0] == nullptr ? Value::integer(0) : *bound[0];
  if (value.is_integral()) return Value::integer(value.as_int());
  if (value.is_real()) return std::isnan(value.as_real()) ? otherwise : Value::integer(truncate(value.as_real()));
  if (value.text() == nullptr) return otherwise;
  const std::int64_t base = whole(bound[1], 10);
  if (base < 2 || base > 36) fail("int needs a base from 2 to 36");
  if (auto digits = digits_of(*value.text()); digits && !digits->empty()) {
    const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
    const std::size_t sign = digits->starts_with('-') ? 1 : 0;
    if (!prefix.empty() && std::string_view(*digits).substr(sign).starts_with(prefix)) digits->erase(sign, 2);
    std::int64_t number = 0;
    const char* end = digits->data() + digits->size();
    const auto result = std::from_chars(digits->data(), end, number, static_cast<int>(base));
    if (result.ptr == end && result.ec == std::errc::result_out_of_range) fail("the number does not fit 64 bits");
    if (result.ptr == end && result.ec == std::errc()) return Value::integer(number);
  }
  const auto real = parse_real(*value.text());
  return real && !std::isnan(*real) ? Value::integer(truncate(*real)) : otherwise;
}

Value to_float(const Value& value, const Given& given) {
  const auto bound = bind("float", given, {"default"});
  require_defined(value);
  if (value.is_number()) return Value::real(value.as_real());
  const auto real = value.text() != nullptr ? parse_real(*value.text()) : std::nullopt;
  return real ? Value::real(*real) : bound[0] != nullptr ? *bound[0] : Value::real(0);
}

Value round(const Value& value, const Given& given) {
  const auto bound = bind("round", given, {"precision", "method"});
  require_defined(value);
  if (!value.is_number()) fail("round needs a number, not {}", value.type_name());
  const std::int64_t precision = whole(bound[0], 0);
  if (precision < -300 || precision > 300) fail("the precision is out of range");
  const std::string method = bound[1] == nullptr ? "common" : string_argument(bound[1], "round").bytes();
  if (method != "common") {
    if (method != "ceil" && method != "floor") fail("round knows common, ceil and floor");
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double scaled = value.as_real() * scale;
    return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (value.is_integral() && precision >= 0) return Value::integer(value.as_int());
  if (!std::isfinite(value.as_real())) return value;
  if (precision < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    const double rounded = std::nearbyint(value.as_real() / scale) * scale;
    return value.is_integral() ? Value::integer(truncate(rounded)) : Value::real(rounded);
  }
  // The decimal expansion is exact, so this rounds as Python does: to the nearest, and ties to even.
  return Value::real(std::strtod(fmt::format("{:.{}f}", value.as_real(), precision).c_str(), nullptr));
}

Value absolute(const Value& value) {
  require_defined(value);
  if (value.is_real()) return Value::real(std::fabs(value.as_real()));
  if (!value.is_integral()) fail("abs needs a number, not {}", value.type_name());
  return value.as_int() < 0 ? negative(value) : Value::integer(value.as_int());
}

Value replace_filter(Heap& heap, const Value& value, const Given& given) {
  const auto bound = bind("replace", given, {"old", "new", "count"}, 2);
  const std::int64_t count = bound[2] == nullptr || bound[2]->is_none() ? -1 : whole(bound[2], -1);
  return heap.string(replace(heap, to_text(heap, value), to_text(heap, *bound[0]), to_text(heap, *bound[1]), count));
}

Value trim(Heap& heap, const Value& value, const Given& given) {
  const Value* characters = bind("trim", given, {"chars"})[0];
  const Text text = to_text(heap, value);
  const bool any = characters != nullptr && !characters->is_none();
  const Range kept = strip(text.bytes(), any ? &string_argument(characters, "trim").bytes() : nullptr, true, true);
  heap.step(text.size() - kept.size + (any ? characters->text()->size() : 0));
  return heap.string(text.substring(kept.from, kept.size));
}

Value cased(Heap& heap, const Value& value, Case to) {
  const Text text = to_text(heap, value);
  heap.step(text.size() / 4);
  return heap.string(change_case(text, to));
}

}  // namespace

Text replace(Heap& heap, const Text& text, const Text& old, const Text& with, std::int64_t count) {
  Text replaced;
  std::size_t at = 0;
  const std::string_view bytes = text.bytes();
  while (count != 0) {
    const std::size_t found = find_part(heap, bytes, old.bytes(), at);
    if (found == std::string_view::npos) break;
    heap.step();
    heap.copy(with);
    heap.require(replaced.size() + with.size() + text.size());
    replaced.append(text, at, found - at);
    replaced.append(with);
    at = found + old.size();
    if (count > 0) --count;
    if (!old.empty()) continue;
    // An empty text is found before each character and at the end.
    if (at == bytes.size()) return replaced;
    const std::size_t size = character_size(bytes.substr(at));
    replaced.append(text, at, size);
    at += size;
  }
  replaced.append(text, at, text.size() - at);
  return replaced;
}

Value apply_filter(Heap& heap, std::string_view name, const Value& value, const Given& given) {
  heap.step();
  if (name == "tojson") return to_json(heap, value, given);
  if (name == "trim") return trim(heap, value, given);
  if (name == "replace") return replace_filter(heap, value, given);
  if (name == "indent") return indent(heap, value, given);
  if ((name == "int" || name == "float") && value.text() != nullptr) heap.step(value.text()->size() / 4);
  if (name == "int") return to_int(value, given);
  if (name == "float") return to_float(value, given);
  if (name == "round") return round(value, given);
  if (name == "default" || name == "d") {
    const auto bound = bind("default", given, {"default_value", "boolean"});
    const bool keeps = flag(bound[1], false) ? truth(value) : !value.is_undefined();
    return keeps ? value : bound[0] != nullptr ? *bound[0] : heap.string(Text());
  }
  if (name == "attr") {
    require_defined(value);
    const std::string& attribute = string_argument(bind("attr", given, {"name"}, 1)[0], "attr").bytes();
    return value.dict() != nullptr && !has_method(value, attribute) ? undefined(attribute)
                                                                    : get_attribute(heap, value, attribute);
  }
  Value result;
  if (apply_sequence_filter(heap, name, value, given, &result)) return result;
  bind(name, given, {});
  if (name == "upper") return cased(heap, value, Case::kUpper);
  if (name == "lower") return cased(heap, value, Case::kLower);
  if (name == "capitalize") return cased(heap, value, Case::kCapital);
  if (name == "title") return title(heap, value);
  if (name == "string" || name == "safe") return heap.string(to_text(heap, value));
  if (name == "length" || name == "count") {
    if (value.text() != nullptr) heap.step(value.text()->size() / 16);
    return Value::integer(length(value));
  }
  if (name == "abs") return absolute(value);
  fail("there is no filter '{}'", name);
}

}  // namespace kvasir::jinja
