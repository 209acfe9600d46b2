// Opens the codes of encoded pages to integers of 16 bits. Internal to the translation unit that includes it.
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels/decode_page.h"

namespace kvasir::avx2 {
namespace {

// A plane of kBits bits, as kvasir::open_plane. words: 32-byte aligned.
template <int kBits>
inline void open_plane(const std::byte* plane, int codes, std::int16_t* words) {
  constexpr int kBlock = kPlaneUnits * 16 / kBits;
  const __m256i ones = _mm256_set1_epi16((1 << kBits) - 1);
  int at = 0;
  for (; at + kBlock <= codes; at += kBlock, plane += 64)
    for (int half = 0; half < 2; ++half) {
      const __m256i units = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(plane + half * 32));
      for (int part = 0; part < 16 / kBits; ++part)
        _mm256_store_si256(reinterpret_cast<__m256i*>(words + at + part * kPlaneUnits + half * 16),
                           _mm256_and_si256(_mm256_srli_epi16(units, kBits * part), ones));
    }
  if (at < codes) kvasir::open_plane<kBits>(plane - at * kBits / 8, at, codes, words);
}

// As kvasir::open_codes.
inline void open_codes(const EncodedSide& side, std::int16_t* words) {
  switch (side.type) {
    case KvType::kQ8:
      for (int i = 0; i < side.codes; i += 16)
        _mm256_store_si256(reinterpret_cast<__m256i*>(words + i),
                           _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(side.data + i))));
      return;
    case KvType::kQ3: {
      alignas(32) std::int16_t high[kMaxCodes];
      avx2::open_plane<2>(side.data, side.codes, words);
      avx2::open_plane<1>(side.data + side.codes / 4, side.codes, high);
      for (int i = 0; i < side.codes; ++i) words[i] = static_cast<std::int16_t>(words[i] | high[i] << 2);
      return;
    }
    case KvType::kQ2: return avx2::open_plane<2>(side.data, side.codes, words);
    default: return avx2::open_plane<4>(side.data, side.codes, words);
  }
}

}  // namespace
}  // namespace kvasir::avx2
