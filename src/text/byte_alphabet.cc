#include "text/byte_alphabet.h"

#include <array>

namespace kvasir {
namespace {

constexpr unsigned kFirstMoved = 0x100;

constexpr bool prints(unsigned byte) {
  return (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
}

struct Alphabet {
  std::array<std::uint16_t, 256> characters{};
  std::array<std::int16_t, 0x180> bytes{};  // of each character, -1 if it stands for none
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.bytes.fill(-1);
  unsigned moved = kFirstMoved;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned character = prints(byte) ? byte : moved++;
    alphabet.characters[byte] = static_cast<std::uint16_t>(character);
    alphabet.bytes[character] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string byte_to_piece(std::uint8_t byte) {
  const unsigned character = kAlphabet.characters[byte];
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

std::optional<std::string> piece_to_bytes(std::string_view piece) {
  std::string bytes;
  for (std::size_t i = 0; i < piece.size(); ++i) {
    unsigned character = static_cast<unsigned char>(piece[i]);
    if (character >= 0x80) {
      if (character < 0xC2 || character > 0xDF || i + 1 == piece.size()) return std::nullopt;
      const unsigned second = static_cast<unsigned char>(piece[++i]);
      if ((second & 0xC0) != 0x80) return std::nullopt;
      character = (character & 0x1F) << 6 | (second & 0x3F);
    }
    if (character >= kAlphabet.bytes.size() || kAlphabet.bytes[character] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.bytes[character]);
  }
  return bytes;
}

}  // namespace kvasir
