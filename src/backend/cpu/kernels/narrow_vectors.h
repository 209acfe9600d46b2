// Steps that AVX2 and AVX-512 both take with vectors of at most eight lanes. Internal to the translation unit that
// includes it.
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels/integer_products.h"

namespace kvasir {
namespace {

// Returns the sum of 8 lanes by halves of 4, 2, 1: the order of the generic kernels.
[[gnu::always_inline]] inline float sum8(__m256 v) {
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

// Returns the sum of 4 lanes by halves.
[[gnu::always_inline]] inline double sum4(__m256d v) {
  const __m128d s2 = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(s2, _mm_unpackhi_pd(s2, s2)));
}

// Sets the units of integer_products.h and their inverses for four sets of numbers. `most`: the bits of the greatest
// magnitude of each set. As integers, those of infinity and NaN are greater than all others. `greatest`: the integer
// that it becomes.
[[gnu::always_inline]] inline void units_of(__m128i most, float* unit, float* inverse, float greatest) {
  const __m128 highest = _mm_castsi128_ps(most);
  const __m128 infinite = _mm_castsi128_ps(_mm_cmpgt_epi32(most, _mm_set1_epi32(0x7f7fffff)));
  const __m128 small = _mm_cmplt_ps(highest, _mm_set1_ps(kLeastInteger));
  _mm_storeu_ps(unit, _mm_blendv_ps(_mm_mul_ps(highest, _mm_set1_ps(1.0F / greatest)), _mm_set1_ps(__builtin_nanf("")),
                                    infinite));
  _mm_storeu_ps(inverse, _mm_andnot_ps(_mm_or_ps(infinite, small), _mm_div_ps(_mm_set1_ps(greatest), highest)));
}

}  // namespace
}  // namespace kvasir
