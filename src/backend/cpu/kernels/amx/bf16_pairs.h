// Floats as pairs of bf16 numbers for the tile unit, and the exponential of weights. Internal to the translation units
// that include it.
#pragma once

#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/avx512/simd.h"

namespace kvasir::amx {
namespace {

// 16 rows of 16 pairs.
constexpr int kTileRow = 32;
using Tile = std::uint16_t[16 * kTileRow];

[[gnu::always_inline]] inline std::uint16_t* row_of(Tile& tile, int row) {
  return tile + row * kTileRow;
}

// The part of a float that bf16 holds, cut off.
[[gnu::always_inline]] inline __m512 upper_half(__m512 x) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

// Splits floats and pairs their parts, the first number of a pair in the lower half.
class Pairs {
 public:
  Pairs() {
    // Hidden from GCC, which would load the constant again for each use.
    asm("" : "+k"(lower_));
  }

  // Writes pairs as the sum of two of bf16: the first rounded to nearest, the second what is left, cut off.
  [[gnu::always_inline]] void split(__m512 first, __m512 second, std::uint16_t* high, std::uint16_t* low) const {
    const __m512 a = rounded(first);
    const __m512 b = rounded(second);
    _mm512_store_si512(high, pair_up(a, b));
    _mm512_store_si512(low, pair_up(_mm512_sub_ps(first, a), _mm512_sub_ps(second, b)));
  }

  // Writes numbers of a page as pairs, exactly. Those of bf16 have no low part.
  template <KvType kType>
  [[gnu::always_inline]] void open(__m512 first, __m512 second, std::uint16_t* high, std::uint16_t* low) const {
    _mm512_store_si512(high, pair_up(first, second));
    if constexpr (kType == KvType::kF16)
      _mm512_store_si512(low,
                         pair_up(_mm512_sub_ps(first, upper_half(first)), _mm512_sub_ps(second, upper_half(second))));
  }

 private:
  [[gnu::always_inline]] static __m512 rounded(__m512 x) {
    return upper_half(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000))));
  }
  // The upper halves of both.
  [[gnu::always_inline]] __m512i pair_up(__m512 first, __m512 second) const {
    const __m512i upper = _mm512_broadcast_i32x4(_mm_set_epi8(15, 14, 15, 14, 11, 10, 11, 10, 7, 6, 7, 6, 3, 2, 3, 2));
    return _mm512_mask_shuffle_epi8(_mm512_castps_si512(second), lower_, _mm512_castps_si512(first), upper);
  }

  __mmask64 lower_ = 0x3333333333333333;  // the bytes of the lower halves
};

// exp(x), x <= 0, to about 2^-21: weights enter sums of values to 2^-16. x = n ln 2 + r, |r| <= ln 2 / 2, and a
// polynomial in r that is 1 at 0. Below -110 the result is zero; NaN stays NaN (the second operand of max is what NaN
// gives).
[[gnu::always_inline]] inline __m512 exp_of_difference(__m512 x) {
  constexpr float kRound = 0x1.8p23F;  // adding it leaves no bits after the binary point
  x = _mm512_max_ps(_mm512_set1_ps(-110.0F), x);
  const __m512 n =
      _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504F), _mm512_set1_ps(kRound)), _mm512_set1_ps(kRound));
  const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693147181F), x);
  __m512 p = _mm512_set1_ps(8.3125243e-3F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1890122e-2F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.66671142e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.99992311e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, n);
}

}  // namespace
}  // namespace kvasir::amx
