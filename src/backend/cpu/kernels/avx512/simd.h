// Building blocks of the AVX-512 kernels. Everything here is internal to the translation unit that includes it, so that
// no function compiled for AVX-512 is shared with code that runs without it.
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels/avx512/simd_table.h"

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

[[gnu::always_inline]] inline float exp1(float x) {
  return _mm512_cvtss_f32(exp16(_mm512_set1_ps(x)));
}

// Halves of 8, 4, 2, 1: the order of the generic kernels.
[[gnu::always_inline]] inline float sum16(__m512 v) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
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

}  // namespace kvasir
