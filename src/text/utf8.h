// Checks and scans UTF-8 that may be truncated or invalid.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

// Returns the offset of the first byte that is not part of valid UTF-8; nullopt if all are.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

// Errors: kInvalidArgument naming the first invalid byte by its offset in the whole text, of which `before` bytes
// precede `text`. `what`: the name of the whole in the message.
Status check_utf8(std::string_view text, std::size_t before = 0, std::string_view what = "the text");

// Returns the length in bytes of the character that starts with `lead`. REQUIRES: `lead` starts a valid character.
inline std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Returns how many bytes of white space (Unicode's White_Space) `text` starts with. REQUIRES: valid UTF-8.
std::size_t white_space_prefix(std::string_view text);

struct Utf8Unit {
  enum class Kind { kComplete, kIncomplete, kInvalid };
  Kind kind;
  // In bytes. kComplete: the character. kIncomplete: the truncated character at the end. kInvalid: the maximal subpart
  // that one U+FFFD replaces (Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts").
  std::size_t length;
};

// Classifies the unit at the start of `bytes`. REQUIRES: bytes not empty.
Utf8Unit first_utf8_unit(std::string_view bytes);

}  // namespace kvasir
