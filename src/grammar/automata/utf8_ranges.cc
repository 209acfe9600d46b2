#include "grammar/automata/utf8_ranges.h"

#include <algorithm>

namespace kvasir::grammar {
namespace {

int encode(char32_t c, std::uint8_t* bytes) {
  if (c < 0x80) {
    bytes[0] = static_cast<std::uint8_t>(c);
    return 1;
  }
  const int size = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  static constexpr std::uint8_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (int i = size - 1; i > 0; --i) {
    bytes[i] = static_cast<std::uint8_t>(0x80 | (c & 0x3F));
    c >>= 6;
  }
  bytes[0] = static_cast<std::uint8_t>(kLead[size] | c);
  return size;
}

// Cuts a range until each part is a product of byte ranges: all but the first differing byte must span 80 to BF.
void split(char32_t first, char32_t last, std::vector<ByteRanges>& out) {
  for (const char32_t end : {char32_t{0x7F}, char32_t{0x7FF}, char32_t{0xFFFF}}) {
    if (first > end || last <= end) continue;
    split(first, end, out);
    return split(end + 1, last, out);
  }
  if (last < 0x80) {
    ByteRanges one;
    one.size = 1;
    one.bytes[0] = {static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last)};
    out.push_back(one);
    return;
  }
  for (int i = 1; i < 4; ++i) {
    const char32_t low = (char32_t{1} << (6 * i)) - 1;
    if ((first & ~low) == (last & ~low)) continue;
    if ((first & low) != 0) {
      split(first, first | low, out);
      return split((first | low) + 1, last, out);
    }
    if ((last & low) != low) {
      split(first, (last & ~low) - 1, out);
      return split(last & ~low, last, out);
    }
  }
  std::uint8_t low[4], high[4];
  ByteRanges ranges;
  ranges.size = encode(first, low);
  encode(last, high);
  for (int i = 0; i < ranges.size; ++i) ranges.bytes[static_cast<std::size_t>(i)] = {low[i], high[i]};
  out.push_back(ranges);
}

}  // namespace

std::vector<ByteRanges> utf8_ranges(CharRange range) {
  constexpr char32_t kBeforeSurrogates = 0xD7FF, kBehindSurrogates = 0xE000;
  std::vector<ByteRanges> out;
  range.last = std::min(range.last, kLastChar);
  if (range.first <= std::min(range.last, kBeforeSurrogates))
    split(range.first, std::min(range.last, kBeforeSurrogates), out);
  if (std::max(range.first, kBehindSurrogates) <= range.last)
    split(std::max(range.first, kBehindSurrogates), range.last, out);
  return out;
}

}  // namespace kvasir::grammar
