// Characters as ranges of bytes.
// Thread-safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "grammar/automata/builder.h"

namespace kvasir::grammar {

// One range for each byte of a character of `size` bytes.
struct ByteRanges {
  struct Range {
    std::uint8_t first = 0;
    std::uint8_t last = 0;
  };
  int size = 0;
  std::array<Range, 4> bytes{};
};

// Returns sequences that together match the UTF-8 of exactly the characters of a range, without surrogates.
std::vector<ByteRanges> utf8_ranges(CharRange range);

}  // namespace kvasir::grammar
