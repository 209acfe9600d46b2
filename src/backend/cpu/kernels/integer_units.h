// The units of integer_products.h for vectors of four numbers. Internal to the translation unit that includes it.
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels/integer_products.h"

namespace kvasir {
namespace {

// The units and their inverses for four sets of numbers. `most`: the bits of the greatest magnitude of each; those of
// what is not finite are greater than all others.
[[gnu::always_inline]] inline void units_of(__m128i most, float* unit, float* inverse) {
  const __m128 highest = _mm_castsi128_ps(most);
  const __m128 infinite = _mm_castsi128_ps(_mm_cmpgt_epi32(most, _mm_set1_epi32(0x7f7fffff)));
  const __m128 small = _mm_cmplt_ps(highest, _mm_set1_ps(kLeastInteger));
  _mm_storeu_ps(unit,
                _mm_blendv_ps(_mm_mul_ps(highest, _mm_set1_ps(kUnit)), _mm_set1_ps(__builtin_nanf("")), infinite));
  _mm_storeu_ps(inverse, _mm_andnot_ps(_mm_or_ps(infinite, small), _mm_div_ps(_mm_set1_ps(kMostInteger), highest)));
}

}  // namespace
}  // namespace kvasir
