// Strings as the Python originals of the metrics treat them. Positions and lengths are in bytes unless said otherwise.
// REQUIRES of all functions but replace_invalid_utf8: valid UTF-8.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::metrics {

// Replaces each maximal subpart that is not UTF-8 by U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

struct Character {
  char32_t code;
  std::size_t size;
};
// Returns the first character. REQUIRES: not empty.
Character first_character(std::string_view text);
std::u32string code_points(std::string_view text);
std::size_t count_code_points(std::string_view text);

// str.isspace() of one character.
bool is_space(char32_t code);

std::string_view lstrip(std::string_view text);
std::string_view rstrip(std::string_view text);
std::string_view strip(std::string_view text);

// str.split(): words between white space.
std::vector<std::string_view> split_words(std::string_view text);
// Returns what precedes the first white space: empty if the text starts with some.
std::string_view first_word(std::string_view text);
// str.split(separator). REQUIRES: separator not empty.
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator);
std::string join(const std::vector<std::string_view>& parts, std::string_view separator);

// str.lower(), but every capital sigma becomes U+03C3, also at the end of a word.
std::string lower(std::string_view text);
// str.upper(), but only U+00DF grows ("SS").
std::string upper(std::string_view text);

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);
// Replaces each of the ASCII characters by a space.
std::string blank_out(std::string_view text, std::string_view ascii);
// Removes string.punctuation and string.digits: both ASCII only.
std::string remove_punctuation(std::string_view text);
std::string remove_ascii_digits(std::string_view text);

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
inline bool is_ascii_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

// Matches of \d+, which are decimal digits of any script.
std::vector<std::string_view> digit_runs(std::string_view text);
// Matches of [0-9]+.
std::vector<std::string_view> ascii_digit_runs(std::string_view text);
// Replaces decimal digits of any script by those of ASCII.
std::string digits_to_ascii(std::string_view text);

// int(text) as decimal digits without leading zeros, after a "-" if negative; nullopt where Python raises ValueError,
// which it also does above 4,300 digits.
std::optional<std::string> parse_int(std::string_view text);
// float(text); nullopt where Python raises ValueError, and for values too large or too small for a double.
std::optional<double> parse_float(std::string_view text);

// The answer normalisation of SQuAD: removes punctuation and the words "a", "an" and "the", joins words by single
// spaces. `fold_case` lowers first.
std::string normalize_answer(std::string_view text, bool fold_case);

}  // namespace kvasir::metrics
