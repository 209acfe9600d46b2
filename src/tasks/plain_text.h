// Plain facts about texts. Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvasir {

inline constexpr std::string_view kAsciiWhiteSpace = " \t\n\r\v\f";

// Returns the size of a text without the white space that ends it.
inline std::size_t size_without_end_space(std::string_view text) {
  return text.find_last_not_of(kAsciiWhiteSpace) + 1;  // of white space alone, npos + 1 is 0
}

// Returns the number of characters of UTF-8.
inline std::int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace kvasir
