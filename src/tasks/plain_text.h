// Plain facts about texts. Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace kvasir {

inline constexpr std::string_view kAsciiWhiteSpace = " \t\n\r\v\f";

// Returns the number of characters of UTF-8.
inline std::int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace kvasir
