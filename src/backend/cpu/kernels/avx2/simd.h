// Building blocks of the AVX2 kernels: vectors of 8, two of which do what one of AVX-512 does, in the same order, so
// that both tables give the same bits. Everything here is internal to the translation unit that includes it, so that no
// function compiled for AVX2 is shared with code that runs without it.
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels/avx2/simd_table.h"

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

[[gnu::always_inline]] inline float exp1(float x) {
  return _mm256_cvtss_f32(exp8(_mm256_set1_ps(x)));
}

// The sum of 16 lanes by halves of 8, 4, 2, 1: the order of the generic kernels.
[[gnu::always_inline]] inline float sum16(__m256 low, __m256 high) {
  const __m256 s8 = _mm256_add_ps(low, high);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
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
inline constexpr std::size_t kElementBytes = kType == KvType::kF32 ? 4 : 2;

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
[[gnu::always_inline]] inline void store_first(std::byte* p, int count, __m256 v) {
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

// The lanes of the mask, moved to the front in their order. What is behind them has no meaning.
[[gnu::always_inline]] inline __m256 compress8(unsigned mask, __m256 v) {
  const std::uint64_t bytes = _pdep_u64(mask, 0x0101010101010101U) * 0xff;
  const std::uint64_t from = _pext_u64(0x0706050403020100U, bytes);
  return _mm256_permutevar8x32_ps(v, _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(from))));
}

}  // namespace

}  // namespace kvasir
