// Python's str.strip(), lstrip() and rstrip() for chat templates, with Python's definition of white space.
// Thread-safety: pure functions.
#pragma once

#include <string_view>

namespace kvasir {

std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);
inline std::string_view strip(std::string_view text) {
  return strip_left(strip_right(text));
}

// Strip one character instead of white space.
std::string_view strip_left(std::string_view text, char character);
std::string_view strip_right(std::string_view text, char character);
inline std::string_view strip(std::string_view text, char character) {
  return strip_left(strip_right(text, character), character);
}

}  // namespace kvasir
