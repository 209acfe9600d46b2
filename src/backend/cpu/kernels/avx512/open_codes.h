// Opens the codes of encoded pages to integers of 16 bits. Internal to the translation unit that includes it.
#pragma once

#include <immintrin.h>

#include <utility>

#include "backend/cpu/kernels/decode_page.h"

namespace kvasir::avx512 {
namespace {

// Part kPart of each unit of a plane of kBits bits, with zeros above.
template <int kBits, int kPart>
[[gnu::always_inline]] inline __m512i plane_part(__m512i units) {
  constexpr int kShift = kBits * kPart;
  const __m512i down = kShift > 0 ? _mm512_srli_epi16(units, kShift) : units;
  return kShift + kBits == 16 ? down : _mm512_and_si512(down, _mm512_set1_epi16((1 << kBits) - 1));
}

template <int kBits, int... kParts>
[[gnu::always_inline]] inline void open_block(const std::byte* block, std::int16_t* words,
                                              std::integer_sequence<int, kParts...>) {
  const __m512i units = _mm512_loadu_si512(block);
  (_mm512_store_si512(words + kParts * kPlaneUnits, plane_part<kBits, kParts>(units)), ...);
}

template <int kBits>
[[gnu::always_inline]] inline void open_blocks(const std::byte* plane, int codes, std::int16_t* words) {
  constexpr int kBlock = kPlaneUnits * 16 / kBits;
  int at = 0;
  for (; at + kBlock <= codes; at += kBlock, plane += 64)
    open_block<kBits>(plane, words + at, std::make_integer_sequence<int, 16 / kBits>{});
  if (at < codes) open_plane<kBits>(plane - at * kBits / 8, at, codes, words);
}

// The high bits of one block of a q3 side, over the low ones in `words`: bit kPart of each unit is worth 4.
template <int... kParts>
[[gnu::always_inline]] inline void add_high_bits(const std::byte* block, std::int16_t* words,
                                                 std::integer_sequence<int, kParts...>) {
  const __m512i units = _mm512_loadu_si512(block);
  const __m512i four = _mm512_set1_epi16(4);
  const auto add = [&](auto part) {
    constexpr int kPart = decltype(part)::value;
    __m512i* at = reinterpret_cast<__m512i*>(words + kPart * kPlaneUnits);
    const __m512i bit = kPart < 2 ? _mm512_slli_epi16(units, 2 - kPart) : _mm512_srli_epi16(units, kPart - 2);
    _mm512_store_si512(at, _mm512_or_si512(_mm512_load_si512(at), _mm512_and_si512(bit, four)));
  };
  (add(std::integral_constant<int, kParts>{}), ...);
}

// As kvasir::open_codes. words: 64-byte aligned.
inline void open_codes(const EncodedSide& side, std::int16_t* words) {
  switch (side.type) {
    case KvType::kQ8:
      for (int i = 0; i < side.codes; i += 32)
        _mm512_store_si512(words + i,
                           _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(side.data + i))));
      return;
    case KvType::kQ3: {
      open_blocks<2>(side.data, side.codes, words);
      const std::byte* high = side.data + side.codes / 4;
      int at = 0;
      for (; at + 512 <= side.codes; at += 512, high += 64)
        add_high_bits(high, words + at, std::make_integer_sequence<int, 16>{});
      if (at == side.codes) return;
      std::int16_t bits[512];
      open_plane<1>(high, 0, side.codes - at, bits);
      for (int i = at; i < side.codes; ++i) words[i] = static_cast<std::int16_t>(words[i] | bits[i - at] << 2);
      return;
    }
    case KvType::kQ2: return open_blocks<2>(side.data, side.codes, words);
    default: return open_blocks<4>(side.data, side.codes, words);
  }
}

}  // namespace
}  // namespace kvasir::avx512
