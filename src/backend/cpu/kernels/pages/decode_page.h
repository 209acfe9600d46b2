// Opens what pages hold: codes as integers, 16 bits as floats, encoded pages as the floats that they stand for. A code
// stands for scale * code, or least + scale * code: the product of an 8-bit code and a 16-bit scale is exact in a
// float, so the bits do not depend on whether it is fused with the sum.
// Written once; compiled for each instruction set by the file that includes it.
#pragma once

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "backend/cpu/kernels/pages/page_layout.h"
#include "tensor/dtype.h"

namespace kvasir {
namespace {

inline constexpr int kMaxCodes = kMaxHeadDim * 64;  // of a side

[[gnu::always_inline]] inline float half_at(const std::byte* p) {
  std::uint16_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
#ifdef __F16C__
  return _cvtsh_ss(bits);
#else
  return f16_to_f32(bits);
#endif
}

[[gnu::always_inline]] inline float half_number(const std::byte* halves, int i) {
  return half_at(halves + static_cast<std::ptrdiff_t>(i) * 2);
}

// Writes the codes of a plane of kBits bits from code `from` on. REQUIRES: `from` begins a block.
template <int kBits>
inline void open_plane(const std::byte* plane, int from, int codes, std::int16_t* words) {
  constexpr int kBlock = kPlaneUnits * 16 / kBits;
  for (; from < codes; from += kBlock) {
    const int count = codes - from < kBlock ? codes - from : kBlock;
    const int units = count * kBits / 16;
    const std::byte* block = plane + static_cast<std::ptrdiff_t>(from) * kBits / 8;
    for (int i = 0; i < count; ++i) {
      std::uint16_t unit;
      __builtin_memcpy(&unit, block + i % units * 2, sizeof unit);
      words[from + i] = static_cast<std::int16_t>(unit >> (kBits * (i / units)) & ((1 << kBits) - 1));
    }
  }
}

// Writes all codes of a side, in the order of page_layout.h. words: [side.codes].
inline void open_codes(const EncodedSide& side, std::int16_t* words) {
  switch (side.type) {
    case KvType::kQ8:
      for (int i = 0; i < side.codes; ++i) words[i] = static_cast<std::int8_t>(side.data[i]);
      return;
    case KvType::kQ3: {
      std::int16_t high[kMaxCodes];
      open_plane<2>(side.data, 0, side.codes, words);
      open_plane<1>(side.data + side.codes / 4, 0, side.codes, high);
      for (int i = 0; i < side.codes; ++i) words[i] = static_cast<std::int16_t>(words[i] | high[i] << 2);
      return;
    }
    case KvType::kQ2: return open_plane<2>(side.data, 0, side.codes, words);
    default: return open_plane<4>(side.data, 0, side.codes, words);
  }
}

// Returns the index of the code of a row's element i.
[[gnu::always_inline]] inline int code_index(const EncodedSide& side, int row, int i) {
  return word_index(row, i, side.count);
}

// out: [rows][count].
inline void decode_side(const EncodedSide& side, bool groups_of_rows, float* out) {
  std::int16_t words[kMaxCodes];
  open_codes(side, words);
  for (int row = 0; row < side.rows; ++row)
    for (int i = 0; i < side.count; ++i) {
      const int scale = groups_of_rows ? row / kCodecGroup * side.count + i : i / kCodecGroup * side.rows + row;
      const float least = side.least != nullptr ? half_number(side.least, scale) : 0.0F;
      out[row * side.count + i] =
          least + half_number(side.scale, scale) * static_cast<float>(words[code_index(side, row, i)]);
    }
  for (int i = 0; i < side.outliers; ++i) {
    const std::byte* outlier = side.places + static_cast<std::size_t>(i) * kOutlierBytes;
    std::uint16_t place;
    __builtin_memcpy(&place, outlier, sizeof place);
    if (place != kNoPlace) out[place] = half_at(outlier + 2);
  }
}

[[gnu::always_inline]] inline float plain_element(KvType type, const std::byte* p) {
  if (type == KvType::kF16) return half_at(p);
  if (type == KvType::kF32) {
    float value;
    __builtin_memcpy(&value, p, sizeof value);
    return value;
  }
  std::uint16_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return bf16_to_f32(bits);
}

inline void load_side(KvType type, const std::byte* side, int count, float* out) {
  const std::size_t size = kv_type_bytes(type);
  for (int i = 0; i < count; ++i) out[i] = plain_element(type, side + static_cast<std::size_t>(i) * size);
}

// The elements of a side in i16, [rows][count]. keys: a row has a dimension of all slots, not a slot.
inline void decode_words(const WordSide<const std::byte>& side, bool keys, float* out) {
  for (int row = 0; row < side.rows; ++row)
    for (int i = 0; i < side.count; ++i)
      out[row * side.count + i] = side.scale(keys ? i : row) * static_cast<float>(side.integer(row, i));
}

// keys: [head_dim][slots].
inline void decode_keys(const PageFormat& format, const std::byte* page, float* keys) {
  if (format.key == KvType::kI16) return decode_words(word_keys(format, page), true, keys);
  if (!is_encoded(format.key)) return load_side(format.key, page, format.head_dim * format.slots, keys);
  decode_side(encoded_keys(format, page), format.key == KvType::kQ8, keys);
}

// values: [slots][head_dim]. `page` is the start of the page.
inline void decode_values(const PageFormat& format, const std::byte* page, float* values) {
  if (format.latent) {
    float keys[kMaxCodes];
    decode_keys(format, page, keys);
    for (int s = 0; s < format.slots; ++s)
      for (int d = 0; d < format.head_dim; ++d) values[s * format.head_dim + d] = keys[d * format.slots + s];
    return;
  }
  if (format.value == KvType::kI16) return decode_words(word_values(format, page), false, values);
  if (!is_encoded(format.value))
    return load_side(format.value, page + values_offset(format), format.head_dim * format.slots, values);
  decode_side(encoded_values(format, page), false, values);
}

}  // namespace
}  // namespace kvasir
