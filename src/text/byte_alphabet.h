// Maps bytes to the printable characters that stand for them in byte-level BPE vocabularies (GPT-2's scheme). Bytes
// that are printable in Latin-1 map to themselves; the others map, in order, to the characters from U+0100 on ("Ġ",
// U+0120, is a space). Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// Returns the character for a byte, in UTF-8.
std::string byte_to_piece(std::uint8_t byte);

// Returns the bytes of a piece; nullopt if one of its characters maps to no byte, or it is not valid UTF-8.
std::optional<std::string> piece_to_bytes(std::string_view piece);

}  // namespace kvasir
