// Sets of characters.
// Thread-safety: plain values and pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "grammar/automata/builder.h"

namespace kvasir::grammar {

using CharSet = std::vector<CharRange>;

// Returns all characters that are not in the set.
CharSet complement(CharSet set);

// Returns the characters of a general category of Unicode: "L", "Lu", "Nd". Empty for an unknown name.
CharSet unicode_category(std::string_view name);

// Appends a set to another.
inline void add(CharSet& to, const CharSet& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Returns the first character of UTF-8 text and removes it from there. REQUIRES: not empty, valid.
char32_t take_char(std::string_view& text);

// Returns the number that `digits` hexadecimal digits at the start of a text make, at most 8, and removes those that it
// read; nullopt where there are fewer.
std::optional<char32_t> take_hex(std::string_view& text, std::size_t digits);

}  // namespace kvasir::grammar
