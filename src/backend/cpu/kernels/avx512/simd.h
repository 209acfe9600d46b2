// Vectors of 16 lanes with AVX-512, as the kernels that are written once ask for them, and building blocks of the AMX
// kernels. Everything here is internal to the translation unit that includes it, so that no function compiled for
// AVX-512 is shared with code that runs without it.
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels/narrow_vectors.h"
#include "backend/cpu/kernels/simd_table.h"

namespace kvasir {
namespace {

// exp(x) to about one unit in the last place: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor's series of exp(r) to r^7 (its
// remainder is under 1e-8). Below -110 the result is zero, above 110 infinity; NaN stays NaN (the
// second operand of max and min is what NaN gives).
[[gnu::always_inline]] inline __m512 exp16(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-110.0F), x);
  x = _mm512_min_ps(_mm512_set1_ps(110.0F), x);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504F)), 0);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4F), r);
  __m512 p = _mm512_set1_ps(1.0F / 5040);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 720));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, n);
}

template <KvType kType>
[[gnu::always_inline]] inline __m512 load16(const std::byte* p) {
  if constexpr (kType == KvType::kF32) return _mm512_loadu_ps(p);
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if constexpr (kType == KvType::kF16) return _mm512_cvtph_ps(bits);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

[[gnu::always_inline]] inline __m256i to_bf16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16));
}

template <KvType kType>
[[gnu::always_inline]] inline void store16(std::byte* p, __mmask16 mask, __m512 v) {
  if constexpr (kType == KvType::kF32) {
    _mm512_mask_storeu_ps(p, mask, v);
  } else if constexpr (kType == KvType::kF16) {
    _mm256_mask_storeu_epi16(p, mask, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  } else {
    _mm256_mask_storeu_epi16(p, mask, to_bf16(v));
  }
}

}  // namespace

namespace avx512 {
namespace {

using Floats = __m512;
using Ints = __m512i;
using Mask = __mmask16;

// 16 floats. Operators + - * / are those of the compiler's vectors.
struct FloatVectors {
  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats all(float x) { return _mm512_set1_ps(x); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
  static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }                 // b, where either is NaN
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
  static Floats abs(Floats x) { return _mm512_abs_ps(x); }
  static Floats exp(Floats x) { return exp16(x); }
  static float exp(float x) { return _mm512_cvtss_f32(exp16(_mm512_set1_ps(x))); }
  // Returns p * 2^n, where n is in the low nine bits of `bits`. REQUIRES: the product is a normal number.
  static Floats add_to_exponent(Floats p, Floats bits) {
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(bits), 23)));
  }
  static float sum(Floats x) { return sum8(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1))); }
  static float greatest(Floats x) { return _mm512_reduce_max_ps(x); }
  static bool finite(Floats x) {
    return _mm512_fpclass_ps_mask(x, 0x01 | 0x08 | 0x10 | 0x80) == 0;  // quiet NaN, the infinities, signalling NaN
  }

  // With a mask: lanes outside it are zero, or those of the last operand. Memory outside it is not touched.
  static Mask mask(std::uint16_t bits) { return bits; }
  static Mask first(int count) { return static_cast<Mask>(count >= 16 ? 0xffff : (1u << count) - 1); }
  static Mask less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Mask less_or_nan(Floats a, Floats b) {  // a < b, or b is NaN
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) | _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q);
  }
  static Floats load(Mask mask, const float* p) { return _mm512_maskz_loadu_ps(mask, p); }
  static void store(Mask mask, float* p, Floats x) { _mm512_mask_storeu_ps(p, mask, x); }
  static Floats where(Mask mask, Floats x) { return _mm512_maskz_mov_ps(mask, x); }
  static Floats where(Mask mask, Floats x, Floats other) { return _mm512_mask_mov_ps(other, mask, x); }
  static Floats mul(Mask mask, Floats a, Floats b) { return _mm512_maskz_mul_ps(mask, a, b); }
  static Floats fma(Mask mask, Floats a, Floats b, Floats c) { return _mm512_mask3_fmadd_ps(a, b, c, mask); }
  static Floats max(Mask mask, Floats a, Floats b) { return _mm512_mask_max_ps(a, mask, a, b); }  // else a
  // Writes the lanes of the mask one behind the other. May write anything behind them, 16 floats in all.
  static void pack(std::uint16_t bits, float* p, Floats x) { _mm512_storeu_ps(p, _mm512_maskz_compress_ps(bits, x)); }
};

// Conversion between floats and elements of pages that are not encoded.
struct ElementVectors {
  template <KvType kType>
  static Floats load_elements(const std::byte* p) {
    return load16<kType>(p);
  }
  template <KvType kType>
  static void store_first_elements(std::byte* p, int count, Floats x) {
    store16<kType>(p, FloatVectors::first(count), x);
  }
  // Writes the lanes of the mask. Other lanes may be read and written back.
  template <KvType kType>
  static void store_elements(std::uint16_t bits, std::byte* p, Floats x) {
    store16<kType>(p, bits, x);
  }
  // Writes the lanes of the mask one behind the other, and nothing else.
  template <KvType kType>
  static void pack_elements(std::uint16_t bits, std::byte* p, Floats x) {
    store16<kType>(p, FloatVectors::first(__builtin_popcount(bits)), _mm512_maskz_compress_ps(bits, x));
  }
};

// Reductions of four vectors at once. Results lie in the first lane of each quarter.
struct FourVectors {
  // Halves all vectors until one lane of each is left: take(upper half, lower half), then take(rest, its other half).
  template <class Take>
  static Floats reduce_four(const Floats* x, const Take& take) {
    const Floats ab = take(_mm512_shuffle_f32x4(x[0], x[1], 0xee), _mm512_shuffle_f32x4(x[0], x[1], 0x44));
    const Floats cd = take(_mm512_shuffle_f32x4(x[2], x[3], 0xee), _mm512_shuffle_f32x4(x[2], x[3], 0x44));
    const Floats all = take(_mm512_shuffle_f32x4(ab, cd, 0xdd), _mm512_shuffle_f32x4(ab, cd, 0x88));
    const Floats two = take(all, _mm512_permute_ps(all, 0x4e));
    return take(two, _mm512_permute_ps(two, 0xb1));
  }
  // The order of _mm512_max_ps decides which lanes a NaN hides; this is the order of GCC's _mm512_reduce_max_ps.
  static Floats max_four(const Floats* x) {
    return reduce_four(x, [](Floats a, Floats b) { return _mm512_max_ps(a, b); });
  }
  // In the order of FloatVectors::sum.
  static Floats sum_four(const Floats* x) {
    return reduce_four(x, [](Floats upper, Floats lower) { return lower + upper; });
  }
  static void sum_four(const Floats* x, float* out) { _mm_storeu_ps(out, first_of_quarters(sum_four(x))); }
  static __m128 first_of_quarters(Floats x) { return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, x)); }
  // Returns the first lane of quarter i, in all lanes.
  static Floats all_of_quarter(Floats x, int i) { return _mm512_permutexvar_ps(_mm512_set1_epi32(4 * i), x); }
  static __m128 exp_four(__m128 x) { return _mm512_castps512_ps128(exp16(_mm512_castps128_ps512(x))); }
  // Calls units_of (narrow_vectors.h) with the greatest lane of each of four vectors.
  static void units_four(const Ints* x, float* unit, float* inverse, float greatest = kMostInteger) {
    const Floats bits[4] = {_mm512_castsi512_ps(x[0]), _mm512_castsi512_ps(x[1]), _mm512_castsi512_ps(x[2]),
                            _mm512_castsi512_ps(x[3])};
    const Floats most = reduce_four(bits, [](Floats a, Floats b) {
      return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
    });
    units_of(_mm_castps_si128(first_of_quarters(most)), unit, inverse, greatest);
  }
};

// 16 integers of 32 bits, or 32 codes of 16 bits.
struct IntegerVectors {
  static Ints no_ints() { return _mm512_setzero_si512(); }
  static Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static int sum_ints(Ints x) { return _mm512_reduce_add_epi32(x); }
  static Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
  static Ints rounded(Floats x) { return _mm512_cvtps_epi32(x); }  // to nearest even
  static Ints magnitude(Floats x) { return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)); }
  static Ints most_bits(Ints a, Ints b) { return _mm512_max_epu32(a, b); }
  // Writes integers as 8 bits each, saturated.
  static void store_bytes(std::int8_t* p, Ints x, Ints next) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(x));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16), _mm512_cvtsepi32_epi8(next));
  }
  // Rounds to integers of 16 bits, saturated. Floats that overflow 32 bits give any integer: their unit is NaN.
  static void store_integers(std::int16_t* p, Floats x) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
  }
  static void store_integers(std::int16_t* p, Floats x, Floats next) {
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i packed = _mm512_packs_epi32(_mm512_cvtps_epi32(x), _mm512_cvtps_epi32(next));
    _mm512_storeu_si512(p, _mm512_permutexvar_epi64(order, packed));
  }

  static Ints load_codes(const std::int16_t* p) { return _mm512_load_si512(p); }
  static void store_codes(std::int16_t* p, Ints x) { _mm512_store_si512(p, x); }
  static Ints load_bytes(const std::byte* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Ints load_units(const std::byte* p) { return _mm512_loadu_si512(p); }
  // Returns part kPart of each unit of a plane of kBits bits, with zeros above.
  template <int kBits, int kPart>
  static Ints plane_part(Ints units) {
    constexpr int kShift = kBits * kPart;
    const __m512i down = kShift > 0 ? _mm512_srli_epi16(units, kShift) : units;
    return kShift + kBits == 16 ? down : _mm512_and_si512(down, _mm512_set1_epi16((1 << kBits) - 1));
  }
  // Adds 4 to each code whose unit has bit kPart set.
  template <int kPart>
  static Ints add_high_bit(Ints codes, Ints units) {
    const __m512i bit = kPart < 2 ? _mm512_slli_epi16(units, 2 - kPart) : _mm512_srli_epi16(units, kPart - 2);
    return _mm512_or_si512(codes, _mm512_and_si512(bit, _mm512_set1_epi16(4)));
  }
  // Returns sum + the products of each pair of codes with `pair`, two integers of 16 bits.
  static Ints dot(Ints sum, std::int32_t pair, Ints codes) {
    // As an instruction of its own: around GCC 12's intrinsic sums are copied from register to register.
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(_mm512_set1_epi32(pair)));
    return sum;
  }
};

// The vectors that kernels written once are compiled with.
struct Vectors : FloatVectors, ElementVectors, FourVectors, IntegerVectors {
  using Floats = avx512::Floats;
  using Ints = avx512::Ints;
  using Mask = avx512::Mask;
  // 16 sums in double.
  struct Doubles {
    __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();

    void add(Floats x) {
      low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
      high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
    }
    double sum() const {
      const __m512d s8 = _mm512_add_pd(low, high);
      return sum4(_mm256_add_pd(_mm512_castpd512_pd256(s8), _mm512_extractf64x4_pd(s8, 1)));
    }
  };

  static constexpr int kSums = 16;  // sums that fit in registers
  // Whether many queries attend faster to a page of 16 bits once it is opened to floats for all of them.
  static constexpr bool kOpensPages = true;
  // Attention over encoded pages: vectors of a group that are summed at once, and queries that are scaled at once.
  static constexpr int kVectors = 2;
  static constexpr int kQueries = 8;
};

}  // namespace
}  // namespace avx512
}  // namespace kvasir
