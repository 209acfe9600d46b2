// UTF-8, unit by unit, for bytes that may be cut off or invalid.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace kvasir {

// The offset of the first byte that is no part of valid UTF-8; nullopt if there is none.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

// The length in bytes of the character that starts with `lead`. REQUIRES: it starts one of valid UTF-8.
inline std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The bytes of white space (Unicode's White_Space) that `text` starts with. REQUIRES: valid UTF-8.
std::size_t white_space_prefix(std::string_view text);

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
