// Opens pages whose values are their keys (PageFormat::latent) to floats, for attention over pages of floats.
// Written once; compiled for each instruction set by the file that includes it. Needs AVX.
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels/generic.h"
#include "backend/cpu/kernels/pages/decode_page.h"

namespace kvasir {
namespace {

// Turns eight vectors of eight lanes into those of their first lanes, of their second, and so on.
[[gnu::always_inline]] inline void transpose8(__m256 (&x)[8]) {
  __m256 pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
    }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    x[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

// As KernelTable::open_latent.
template <class Simd>
inline void open_latent(const PageFormat& format, const std::byte* page, float* out) {
  const int dim = format.head_dim, slots = format.slots;
  if (dim % 16 != 0 || slots % 16 != 0) return generic_kernels().open_latent(format, page, out);
  if (!has_floats(format.key)) {
    decode_keys(format, page, out);
  } else {
    with_element_type(format.key, [&]<KvType kType>() {
      for (int i = 0; i < dim * slots; i += 16)
        Simd::store(out + i,
                    Simd::template load_elements<kType>(page + static_cast<std::size_t>(i) * kElementBytes<kType>));
    });
  }
  float* const values = out + dim * slots;
  for (int slot = 0; slot < slots; slot += 8)
    for (int d = 0; d < dim; d += 8) {
      __m256 block[8];
      for (int i = 0; i < 8; ++i) block[i] = _mm256_loadu_ps(out + (d + i) * slots + slot);
      transpose8(block);
      for (int i = 0; i < 8; ++i) _mm256_storeu_ps(values + (slot + i) * dim + d, block[i]);
    }
}

}  // namespace
}  // namespace kvasir
