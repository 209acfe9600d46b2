#include "tasks/metrics/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>

#include "text/utf8.h"

namespace kvasir::metrics {
namespace {

constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
constexpr std::size_t kMostIntDigits = 4300;  // sys.int_info.default_max_str_digits

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_decimal(char32_t code) {
  return code < 0x80 ? code >= '0' && code <= '9' : category(code) == UTF8PROC_CATEGORY_ND;
}

// \w: letters, numbers of all kinds, and "_".
bool is_word(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return true;
    default: return code == '_';
  }
}

// Digits of a script are ten consecutive code points; where scripts adjoin, the run is still one of tens.
char ascii_digit_of(char32_t code) {
  char32_t zero = code;
  while (zero > 0 && is_decimal(zero - 1)) --zero;
  return static_cast<char>('0' + (code - zero) % 10);
}

void append(std::string* text, char32_t code) {
  if (code < 0x80) {
    *text += static_cast<char>(code);
    return;
  }
  std::array<utf8proc_uint8_t, 4> bytes{};
  const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  text->append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(size));
}

// Returns the length of the longest prefix whose characters all satisfy `wanted`.
template <class Wanted>
std::size_t prefix_of(std::string_view text, Wanted wanted) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Character character = first_character(text.substr(at));
    if (!wanted(character.code)) break;
    at += character.size;
  }
  return at;
}

template <class Wanted>
std::vector<std::string_view> runs_of(std::string_view text, Wanted wanted) {
  std::vector<std::string_view> runs;
  while (!text.empty()) {
    text.remove_prefix(prefix_of(text, [&](char32_t code) { return !wanted(code); }));
    const std::size_t size = prefix_of(text, wanted);
    if (size > 0) runs.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return runs;
}

// Calls append_changed(&result, code) for each character.
template <class AppendChanged>
std::string changed(std::string_view text, AppendChanged append_changed) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    append_changed(&result, character.code);
    text.remove_prefix(character.size);
  }
  return result;
}

template <class Dropped>
std::string without(std::string_view text, Dropped dropped) {
  std::string kept;
  kept.reserve(text.size());
  std::copy_if(text.begin(), text.end(), std::back_inserter(kept), [&](char byte) { return !dropped(byte); });
  return kept;
}

// Removes the underscores that Python allows between digits; nullopt for one elsewhere.
std::optional<std::string> without_separators(std::string_view number) {
  std::string digits;
  for (std::size_t i = 0; i < number.size(); ++i) {
    if (number[i] != '_') {
      digits += number[i];
    } else if (i == 0 || i + 1 == number.size() || !is_ascii_digit(number[i - 1]) || !is_ascii_digit(number[i + 1])) {
      return std::nullopt;
    }
  }
  return digits;
}

}  // namespace

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Unit unit = first_utf8_unit(bytes);
    text += unit.kind == Utf8Unit::Kind::kComplete ? bytes.substr(0, unit.length) : std::string_view("\uFFFD");
    bytes.remove_prefix(unit.length);
  }
  return text;
}

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const std::size_t size = utf8_length(text[0]);
  if (size == 1) return {byte(0), 1};
  char32_t code = byte(0) & (0x7Fu >> size);
  for (std::size_t i = 1; i < size; ++i) code = code << 6 | (byte(i) & 0x3F);
  return {code, size};
}

std::u32string code_points(std::string_view text) {
  std::u32string codes;
  codes.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_character(text);
    codes += character.code;
    text.remove_prefix(character.size);
  }
  return codes;
}

std::size_t count_code_points(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
}

bool is_space(char32_t code) {
  return code == ' ' || (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x1F) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

std::string_view lstrip(std::string_view text) {
  return text.substr(prefix_of(text, is_space));
}

std::string_view rstrip(std::string_view text) {
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (!is_space(first_character(text.substr(last)).code)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string_view strip(std::string_view text) {
  return rstrip(lstrip(text));
}

std::vector<std::string_view> split_words(std::string_view text) {
  return runs_of(text, [](char32_t code) { return !is_space(code); });
}

std::string_view first_word(std::string_view text) {
  return text.substr(0, prefix_of(text, [](char32_t code) { return !is_space(code); }));
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (std::size_t found; (found = text.find(separator)) != std::string_view::npos;) {
    parts.push_back(text.substr(0, found));
    text.remove_prefix(found + separator.size());
  }
  parts.push_back(text);
  return parts;
}

std::string join(const std::vector<std::string_view>& parts, std::string_view separator) {
  std::string joined;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += separator;
    joined += parts[i];
  }
  return joined;
}

std::string lower(std::string_view text) {
  return changed(text, [](std::string* lowered, char32_t code) {
    append(lowered, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
    if (code == 0x130) *lowered += "\u0307";  // the one lower-case form that is two characters
  });
}

std::string upper(std::string_view text) {
  return changed(text, [](std::string* raised, char32_t code) {
    if (code == 0xDF) {
      *raised += "SS";
    } else {
      append(raised, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
    }
  });
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  return join(split_at(text, from), to);
}

std::string blank_out(std::string_view text, std::string_view ascii) {
  std::string blanked(text);
  std::replace_if(
      blanked.begin(), blanked.end(),
      [&](char byte) {
        return contains(ascii, {&byte, 1});
      },
      ' ');
  return blanked;
}

std::string remove_punctuation(std::string_view text) {
  return without(text, [](char byte) { return contains(kPunctuation, {&byte, 1}); });
}

std::string remove_ascii_digits(std::string_view text) {
  return without(text, is_ascii_digit);
}

std::vector<std::string_view> digit_runs(std::string_view text) {
  return runs_of(text, is_decimal);
}

std::vector<std::string_view> ascii_digit_runs(std::string_view text) {
  return runs_of(text, [](char32_t code) { return code >= '0' && code <= '9'; });
}

std::string digits_to_ascii(std::string_view text) {
  return changed(text, [](std::string* converted, char32_t code) {
    append(converted, is_decimal(code) ? static_cast<char32_t>(ascii_digit_of(code)) : code);
  });
}

std::optional<std::string> parse_int(std::string_view text) {
  const std::string ascii = digits_to_ascii(strip(text));
  std::string_view number = ascii;
  const bool negative = number.starts_with('-');
  if (negative || number.starts_with('+')) number.remove_prefix(1);
  const std::optional<std::string> digits = without_separators(number);
  if (!digits || digits->empty() || digits->size() > kMostIntDigits) return std::nullopt;
  if (!std::all_of(digits->begin(), digits->end(), is_ascii_digit)) return std::nullopt;
  const std::size_t first = digits->find_first_not_of('0');
  if (first == std::string::npos) return "0";
  return (negative ? "-" : "") + digits->substr(first);
}

std::optional<double> parse_float(std::string_view text) {
  const std::optional<std::string> plain = without_separators(digits_to_ascii(strip(text)));
  if (!plain) return std::nullopt;
  std::string_view number = *plain;
  const bool negative = number.starts_with('-');
  if (negative || number.starts_with('+')) number.remove_prefix(1);
  // std::from_chars reads a second sign, and payloads of NaN, which Python does not.
  if (number.starts_with('-') || contains(number, "(")) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  return negative ? -value : value;
}

std::string normalize_answer(std::string_view text, bool fold_case) {
  const std::string plain = remove_punctuation(fold_case ? lower(text) : std::string(text));
  std::string kept;
  kept.reserve(plain.size());
  for (std::string_view rest = plain; !rest.empty();) {
    const std::size_t gap = prefix_of(rest, [](char32_t code) { return !is_word(code); });
    kept += rest.substr(0, gap);
    rest.remove_prefix(gap);
    const std::string_view word = rest.substr(0, prefix_of(rest, is_word));
    kept += word == "a" || word == "an" || word == "the" ? " " : word;
    rest.remove_prefix(word.size());
  }
  return join(split_words(kept), " ");
}

}  // namespace kvasir::metrics
