// How byte-level BPE writes bytes in a vocabulary's pieces: each as one character, as GPT-2 does. Those that print in
// Latin-1 stand for themselves; the others are, in order, the characters from U+0100 ("Ġ", U+0120, is a space).
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// The character for a byte, in UTF-8.
std::string byte_to_piece(std::uint8_t byte);

// The bytes of a piece; nullopt if a character of it stands for none, or it is not valid UTF-8.
std::optional<std::string> piece_to_bytes(std::string_view piece);

}  // namespace kvasir
