// UTF-8, unit by unit, for bytes that may be cut off or invalid.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace kvasir {

// The offset of the first byte that is no part of valid UTF-8; nullopt if there is none.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

struct Utf8Unit {
  enum class Kind { kComplete, kIncomplete, kInvalid };
  Kind kind;
  // kComplete: of the character. kIncomplete: of the bytes, which end before the character does. kInvalid: of the
  // maximal subpart that one U+FFFD replaces (Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts").
  std::size_t length;
};

// What `bytes` starts with. REQUIRES: bytes not empty.
Utf8Unit first_utf8_unit(std::string_view bytes);

}  // namespace kvasir
