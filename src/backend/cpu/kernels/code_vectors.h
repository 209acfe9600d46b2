// Where the codes of an encoded side are read from, as vectors of 16 pairs of codes in the order of page_layout.h. A
// source reads kParts of them, consecutive ones, as a block:
//   block(b)        what vectors b * kParts .. hold, as it lies in memory
//   part<k>(block)  vector k of a block, codes as integers of 16 bits
// Planes are opened in registers: where the parts of a block lie in a row must be known at compile time.
// Written once; compiled for each instruction set by the file that includes it.
#pragma once

#include "backend/cpu/kernels/pages/page_layout.h"

namespace kvasir {
namespace {

// Codes that are open as 16-bit integers in memory.
template <class Simd>
struct WordCodes {
  using Ints = typename Simd::Ints;
  static constexpr int kParts = 1;
  const std::int16_t* words;

  [[gnu::always_inline]] Ints block(int b) const { return Simd::load_codes(words + b * 32); }
  template <int kPart>
  [[gnu::always_inline]] static Ints part(const Ints& of) {
    return of;
  }
};

// q8.
template <class Simd>
struct ByteCodes {
  using Ints = typename Simd::Ints;
  static constexpr int kParts = 1;
  const std::byte* bytes;

  [[gnu::always_inline]] Ints block(int b) const { return Simd::load_bytes(bytes + b * 32); }
  template <int kPart>
  [[gnu::always_inline]] static Ints part(const Ints& of) {
    return of;
  }
};

// q4 and q2. REQUIRES: whole blocks.
template <class Simd, int kBits>
struct PlaneCodes {
  using Ints = typename Simd::Ints;
  static constexpr int kParts = 16 / kBits;
  const std::byte* plane;

  [[gnu::always_inline]] Ints block(int b) const { return Simd::load_units(plane + b * 64); }
  template <int kPart>
  [[gnu::always_inline]] static Ints part(const Ints& units) {
    return Simd::template plane_part<kBits, kPart>(units);
  }
};

// q3: two blocks of the low bits and one of the high ones. REQUIRES: whole blocks.
template <class Simd>
struct ThreeBitCodes {
  using Ints = typename Simd::Ints;
  static constexpr int kParts = 16;
  const std::byte* low;
  const std::byte* high;

  struct Block {
    Ints low[2];
    Ints high;
  };
  [[gnu::always_inline]] Block block(int b) const {
    return {{Simd::load_units(low + b * 128), Simd::load_units(low + b * 128 + 64)}, Simd::load_units(high + b * 64)};
  }
  template <int kPart>
  [[gnu::always_inline]] static Ints part(const Block& of) {
    return Simd::template add_high_bit<kPart>(Simd::template plane_part<2, kPart % 8>(of.low[kPart / 8]), of.high);
  }
};

}  // namespace
}  // namespace kvasir
