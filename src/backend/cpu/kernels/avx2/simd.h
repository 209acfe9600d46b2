// Vectors of 16 lanes with AVX2, as those of avx512/simd.h: each is two of 8, which do what one of AVX-512 does, in the
// same order, so that both tables give the same bits. Everything here is internal to the translation unit that includes
// it, so that no function compiled for AVX2 is shared with code that runs without it.
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels/narrow_vectors.h"
#include "backend/cpu/kernels/pages/page_layout.h"
#include "backend/cpu/kernels/simd_table.h"

namespace kvasir {
namespace {

// All bits of lane i are bit i of the mask.
[[gnu::always_inline]] inline __m256i lanes_of(unsigned mask) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bits), bits);
}

// The first `left` of 8 lanes; all for 8 and more, none for 0 and less.
[[gnu::always_inline]] inline __m256i first_lanes(int left) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// 2^n for n of -126 to 127.
[[gnu::always_inline]] inline __m256 power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

// exp(x) to about one unit in the last place: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor's series of exp(r) to r^7 (its
// remainder is under 1e-8). Below -110 the result is zero, above 110 infinity; NaN stays NaN (the second operand of max
// and min is what NaN gives). Multiplied by 2^n in two steps, of which the first is exact.
[[gnu::always_inline]] inline __m256 exp8(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(-110.0F), x);
  x = _mm256_min_ps(_mm256_set1_ps(110.0F), x);
  const __m256 n =
      _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504F)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375F), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4F), r);
  __m256 p = _mm256_set1_ps(1.0F / 5040);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 720));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 120));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 24));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F / 6));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F));
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  return _mm256_mul_ps(_mm256_mul_ps(p, power_of_two(half)), power_of_two(_mm256_sub_epi32(whole, half)));
}

// The greatest of 16 lanes. Which of them a NaN hides depends on the order: it is that of GCC's
// _mm512_reduce_max_ps.
[[gnu::always_inline]] inline float max16(__m256 low, __m256 high) {
  const __m256 m8 = _mm256_max_ps(high, low);
  const __m128 m4 = _mm_max_ps(_mm256_extractf128_ps(m8, 1), _mm256_castps256_ps128(m8));
  const __m128 m2 = _mm_max_ps(m4, _mm_shuffle_ps(m4, m4, _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm_cvtss_f32(_mm_max_ps(m2, _mm_shuffle_ps(m2, m2, _MM_SHUFFLE(0, 1, 0, 1))));
}

template <KvType kType>
[[gnu::always_inline]] inline __m256 load8(const std::byte* p) {
  if constexpr (kType == KvType::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  if constexpr (kType == KvType::kF16) return _mm256_cvtph_ps(bits);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// The low 16 bits of each lane, which have no others.
[[gnu::always_inline]] inline __m128i narrow(__m256i words) {
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

[[gnu::always_inline]] inline __m128i to_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return narrow(_mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16));
}

template <KvType kType>
[[gnu::always_inline]] inline __m128i to_16_bits(__m256 v) {
  if constexpr (kType == KvType::kF16) return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
  return to_bf16(v);
}

// Writes the lanes of the mask, and to the others what was there.
template <KvType kType>
[[gnu::always_inline]] inline void blend_store8(std::byte* p, __m256i lanes, __m256 v) {
  if constexpr (kType == KvType::kF32) {
    _mm256_maskstore_ps(reinterpret_cast<float*>(p), lanes, v);
  } else {
    auto* place = reinterpret_cast<__m128i*>(p);
    const __m128i narrow_lanes = _mm_packs_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    _mm_storeu_si128(place, _mm_blendv_epi8(_mm_loadu_si128(place), to_16_bits<kType>(v), narrow_lanes));
  }
}

// Writes the first `count` of 8 lanes and touches nothing else.
template <KvType kType>
[[gnu::always_inline]] inline void store_first8(std::byte* p, int count, __m256 v) {
  if constexpr (kType == KvType::kF32) {
    _mm256_maskstore_ps(reinterpret_cast<float*>(p), first_lanes(count), v);
  } else if (count == 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_16_bits<kType>(v));
  } else {
    alignas(16) std::byte converted[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(converted), to_16_bits<kType>(v));
    for (int i = 0; i < 2 * count; ++i) p[i] = converted[i];
  }
}

// [mask]: the numbers of the lanes of the mask, a byte each, ascending. Before Zen 3, AMD's pext takes some 200 cycles.
struct LanesOfMasks {
  std::uint64_t of[256];

  constexpr LanesOfMasks() : of() {
    for (unsigned mask = 0; mask < 256; ++mask) {
      unsigned count = 0;
      for (unsigned lane = 0; lane < 8; ++lane)
        if ((mask >> lane & 1U) != 0) of[mask] |= std::uint64_t{lane} << (8 * count++);
    }
  }
};
inline constexpr LanesOfMasks kLanesOfMasks;

// The lanes of the mask, moved to the front in their order. What is behind them has no meaning.
[[gnu::always_inline]] inline __m256 compress8(unsigned mask, __m256 v) {
  const auto lanes = static_cast<long long>(kLanesOfMasks.of[mask]);
  return _mm256_permutevar8x32_ps(v, _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(lanes)));
}

}  // namespace

namespace avx2 {
namespace {

struct Floats {
  __m256 low, high;
};
struct Ints {
  __m256i low, high;
};
using Mask = Ints;

inline Floats operator+(Floats a, Floats b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Floats operator-(Floats a, Floats b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Floats operator*(Floats a, Floats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Floats operator/(Floats a, Floats b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Floats& operator+=(Floats& a, Floats b) {
  return a = a + b;
}

inline Mask mask_of(__m256 low, __m256 high) {
  return {_mm256_castps_si256(low), _mm256_castps_si256(high)};
}
inline Floats floats_of(const Mask& mask) {
  return {_mm256_castsi256_ps(mask.low), _mm256_castsi256_ps(mask.high)};
}

struct FloatVectors {
  static Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
  }
  static Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  static Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static Floats abs(Floats x) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(x.low, magnitude), _mm256_and_ps(x.high, magnitude)};
  }
  static Floats exp(Floats x) { return {exp8(x.low), exp8(x.high)}; }
  static float exp(float x) { return _mm256_cvtss_f32(exp8(_mm256_set1_ps(x))); }
  // As in avx512/simd.h.
  static __m256 add_to_exponent(__m256 p, __m256 bits) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(bits), 23)));
  }
  static Floats add_to_exponent(Floats p, Floats bits) {
    return {add_to_exponent(p.low, bits.low), add_to_exponent(p.high, bits.high)};
  }
  static float sum(Floats x) { return sum8(_mm256_add_ps(x.low, x.high)); }
  static float greatest(Floats x) { return max16(x.low, x.high); }
  static bool finite(Floats x) {
    const __m256i infinity = _mm256_set1_epi32(0x7f800000);
    const Floats size = abs(x);
    return _mm256_movemask_epi8(_mm256_and_si256(_mm256_cmpgt_epi32(infinity, _mm256_castps_si256(size.low)),
                                                 _mm256_cmpgt_epi32(infinity, _mm256_castps_si256(size.high)))) == -1;
  }

  static Mask mask(std::uint16_t bits) { return {lanes_of(bits & 0xffU), lanes_of(bits >> 8)}; }
  static Mask first(int count) { return {first_lanes(count), first_lanes(count - 8)}; }
  static Mask less(Floats a, Floats b) {
    return mask_of(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ));
  }
  static Mask less_or_nan(Floats a, Floats b) {
    const Mask less = FloatVectors::less(a, b);
    const Mask nan = mask_of(_mm256_cmp_ps(b.low, b.low, _CMP_UNORD_Q), _mm256_cmp_ps(b.high, b.high, _CMP_UNORD_Q));
    return {_mm256_or_si256(less.low, nan.low), _mm256_or_si256(less.high, nan.high)};
  }
  static Floats load(const Mask& mask, const float* p) {
    return {_mm256_maskload_ps(p, mask.low), _mm256_maskload_ps(p + 8, mask.high)};
  }
  static void store(const Mask& mask, float* p, Floats x) {
    _mm256_maskstore_ps(p, mask.low, x.low);
    _mm256_maskstore_ps(p + 8, mask.high, x.high);
  }
  static Floats where(const Mask& mask, Floats x) {
    const Floats lanes = floats_of(mask);
    return {_mm256_and_ps(lanes.low, x.low), _mm256_and_ps(lanes.high, x.high)};
  }
  static Floats where(const Mask& mask, Floats x, Floats other) {
    const Floats lanes = floats_of(mask);
    return {_mm256_blendv_ps(other.low, x.low, lanes.low), _mm256_blendv_ps(other.high, x.high, lanes.high)};
  }
  static Floats mul(const Mask& mask, Floats a, Floats b) { return where(mask, a * b); }
  static Floats fma(const Mask& mask, Floats a, Floats b, Floats c) { return where(mask, fma(a, b, c), c); }
  static Floats max(const Mask& mask, Floats a, Floats b) { return where(mask, max(a, b), a); }
  static void pack(std::uint16_t bits, float* p, Floats x) {
    _mm256_storeu_ps(p, compress8(bits & 0xffU, x.low));
    _mm256_storeu_ps(p + __builtin_popcount(bits & 0xffU), compress8(bits >> 8, x.high));
  }
};

struct ElementVectors {
  template <KvType kType>
  static Floats load_elements(const std::byte* p) {
    return {load8<kType>(p), load8<kType>(p + 8 * kElementBytes<kType>)};
  }
  template <KvType kType>
  static void store_first_elements(std::byte* p, int count, Floats x) {
    store_first8<kType>(p, count < 8 ? count : 8, x.low);
    if (count > 8) store_first8<kType>(p + 8 * kElementBytes<kType>, count - 8, x.high);
  }
  template <KvType kType>
  static void store_elements(std::uint16_t bits, std::byte* p, Floats x) {
    blend_store8<kType>(p, lanes_of(bits & 0xffU), x.low);
    blend_store8<kType>(p + 8 * kElementBytes<kType>, lanes_of(bits >> 8), x.high);
  }
  template <KvType kType>
  static void pack_elements(std::uint16_t bits, std::byte* p, Floats x) {
    const int count = __builtin_popcount(bits & 0xffU);
    store_first8<kType>(p, count, compress8(bits & 0xffU, x.low));
    store_first8<kType>(p + static_cast<std::size_t>(count) * kElementBytes<kType>, __builtin_popcount(bits >> 8),
                        compress8(bits >> 8, x.high));
  }
};

struct FourVectors {
  // Lanes of two vectors of 8, halved: with `take` of the upper half and the lower one, then of what is left likewise.
  template <class Take>
  static __m256 halve_two(__m256 a, __m256 b, const Take& take) {
    const __m256 four = take(_mm256_permute2f128_ps(a, b, 0x31), _mm256_permute2f128_ps(a, b, 0x20));
    const __m256 two = take(four, _mm256_permute_ps(four, 0x4e));
    return take(two, _mm256_permute_ps(two, 0xb1));
  }
  static Floats max_four(const Floats* x) {
    const auto most = [](__m256 a, __m256 b) { return _mm256_max_ps(a, b); };
    return {halve_two(most(x[0].high, x[0].low), most(x[1].high, x[1].low), most),
            halve_two(most(x[2].high, x[2].low), most(x[3].high, x[3].low), most)};
  }
  static Floats sum_four(const Floats* x) {
    const auto sum = [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); };
    return {halve_two(sum(x[0].low, x[0].high), sum(x[1].low, x[1].high), sum),
            halve_two(sum(x[2].low, x[2].high), sum(x[3].low, x[3].high), sum)};
  }
  static void sum_four(const Floats* x, float* out) { _mm_storeu_ps(out, first_of_quarters(sum_four(x))); }
  static __m128 first_of_quarters(Floats x) {
    return _mm_movelh_ps(_mm_unpacklo_ps(_mm256_castps256_ps128(x.low), _mm256_extractf128_ps(x.low, 1)),
                         _mm_unpacklo_ps(_mm256_castps256_ps128(x.high), _mm256_extractf128_ps(x.high, 1)));
  }
  static Floats all_of_quarter(Floats x, int i) {
    const __m256 half = i < 2 ? x.low : x.high;
    const __m256 lane =
        _mm256_broadcastss_ps(i % 2 == 0 ? _mm256_castps256_ps128(half) : _mm256_extractf128_ps(half, 1));
    return {lane, lane};
  }
  static __m128 exp_four(__m128 x) { return _mm256_castps256_ps128(exp8(_mm256_castps128_ps256(x))); }
  // The greatest lanes of two vectors, in lanes 0 and 1, and 2 and 3.
  static __m128i most_of(Ints x, Ints y) {
    const __m256i a = _mm256_max_epu32(x.low, x.high);
    const __m256i b = _mm256_max_epu32(y.low, y.high);
    const __m256i four = _mm256_max_epu32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    return _mm_max_epu32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
  }
  static void units_four(const Ints* x, float* unit, float* inverse, float greatest = kMostInteger) {
    const __m128 first = _mm_castsi128_ps(most_of(x[0], x[1]));
    const __m128 second = _mm_castsi128_ps(most_of(x[2], x[3]));
    units_of(_mm_max_epu32(_mm_castps_si128(_mm_shuffle_ps(first, second, _MM_SHUFFLE(2, 0, 2, 0))),
                           _mm_castps_si128(_mm_shuffle_ps(first, second, _MM_SHUFFLE(3, 1, 3, 1)))),
             unit, inverse, greatest);
  }
};

struct IntegerVectors {
  static Ints no_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static Ints add_ints(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
  static Ints magnitude(Floats x) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    return {_mm256_and_si256(_mm256_castps_si256(x.low), mask), _mm256_and_si256(_mm256_castps_si256(x.high), mask)};
  }
  static Ints most_bits(Ints a, Ints b) { return {_mm256_max_epu32(a.low, b.low), _mm256_max_epu32(a.high, b.high)}; }
  static int sum_ints(const Ints& x) {
    const __m256i s8 = _mm256_add_epi32(x.low, x.high);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(s8), _mm256_extracti128_si256(s8, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1))));
  }
  static Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
  static Ints rounded(Floats x) { return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)}; }
  // Packing takes the halves of both operands in turns; the permutation puts them in order.
  static void store_bytes(std::int8_t* p, const Ints& x, const Ints& next) {
    const __m256i packed =
        _mm256_packs_epi16(_mm256_packs_epi32(x.low, x.high), _mm256_packs_epi32(next.low, next.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  }
  static void store_integers(std::int16_t* p, Floats x) {
    const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
  }
  static void store_integers(std::int16_t* p, Floats x, Floats next) {
    store_integers(p, x);
    store_integers(p + 16, next);
  }

  static Ints load_codes(const std::int16_t* p) {
    return {_mm256_load_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_load_si256(reinterpret_cast<const __m256i*>(p + 16))};
  }
  static void store_codes(std::int16_t* p, const Ints& x) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), x.low);
    _mm256_store_si256(reinterpret_cast<__m256i*>(p + 16), x.high);
  }
  static Ints load_bytes(const std::byte* p) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
  }
  static Ints load_units(const std::byte* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  template <int kBits, int kPart>
  static __m256i plane_part(__m256i units) {
    constexpr int kShift = kBits * kPart;
    const __m256i down = kShift > 0 ? _mm256_srli_epi16(units, kShift) : units;
    return kShift + kBits == 16 ? down : _mm256_and_si256(down, _mm256_set1_epi16((1 << kBits) - 1));
  }
  template <int kBits, int kPart>
  static Ints plane_part(Ints units) {
    return {plane_part<kBits, kPart>(units.low), plane_part<kBits, kPart>(units.high)};
  }
  template <int kPart>
  static __m256i add_high_bit(__m256i codes, __m256i units) {
    const __m256i bit = kPart < 2 ? _mm256_slli_epi16(units, 2 - kPart) : _mm256_srli_epi16(units, kPart - 2);
    return _mm256_or_si256(codes, _mm256_and_si256(bit, _mm256_set1_epi16(4)));
  }
  template <int kPart>
  static Ints add_high_bit(Ints codes, Ints units) {
    return {add_high_bit<kPart>(codes.low, units.low), add_high_bit<kPart>(codes.high, units.high)};
  }
  static Ints dot(Ints sum, std::int32_t pair, Ints codes) {
    const __m256i factor = _mm256_set1_epi32(pair);
    return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(codes.low, factor)),
            _mm256_add_epi32(sum.high, _mm256_madd_epi16(codes.high, factor))};
  }
};

struct Vectors : FloatVectors, ElementVectors, FourVectors, IntegerVectors {
  using Floats = avx2::Floats;
  using Ints = avx2::Ints;
  using Mask = avx2::Mask;
  struct Doubles {
    __m256d sums[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};

    void add(Floats x) {
      sums[0] = _mm256_add_pd(sums[0], _mm256_cvtps_pd(_mm256_castps256_ps128(x.low)));
      sums[1] = _mm256_add_pd(sums[1], _mm256_cvtps_pd(_mm256_extractf128_ps(x.low, 1)));
      sums[2] = _mm256_add_pd(sums[2], _mm256_cvtps_pd(_mm256_castps256_ps128(x.high)));
      sums[3] = _mm256_add_pd(sums[3], _mm256_cvtps_pd(_mm256_extractf128_ps(x.high, 1)));
    }
    double sum() const { return sum4(_mm256_add_pd(_mm256_add_pd(sums[0], sums[2]), _mm256_add_pd(sums[1], sums[3]))); }
  };

  static constexpr int kSums = 4;
  static constexpr bool kOpensPages = false;
  static constexpr int kVectors = 1;
  static constexpr int kQueries = 2;
};

}  // namespace
}  // namespace avx2
}  // namespace kvasir
