// Reads encoded pages as floats. An element is scale * code, or least + scale * code: the product of an 8-bit code and
// a 16-bit scale is exact in a float, so the bits do not depend on whether it is fused with the sum, and every table
// reads the same floats.
// Written once; compiled for each instruction set by the file that includes it, whose compiler makes vectors of the
// loops.
#pragma once

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <cstring>

#include "backend/cpu/kernels/page_layout.h"

namespace kvasir {
namespace {

[[gnu::always_inline]] inline float half_at(const std::byte* p) {
  std::uint16_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
#ifdef __F16C__
  return _cvtsh_ss(bits);
#else
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = bits >> 10 & 31U;
  std::uint32_t fraction = bits & 0x3ffU;
  float value;
  if (exponent == 0) {
    value = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  const std::uint32_t wide = sign | (exponent == 31 ? 0xffU << 23 : (exponent + 112) << 23) | fraction << 13;
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
#endif
}

// Codes of kSize elements of a group, as floats.
template <KvType kType, int kSize>
[[gnu::always_inline]] inline void whole_codes(const std::byte* from, float* out) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
  if constexpr (kType == KvType::kQ4 || kType == KvType::kQ4O) {
    for (int i = 0; i < kSize / 2; ++i) {
      out[i] = static_cast<float>(bytes[i] & 15);
      out[i + kSize / 2] = static_cast<float>(bytes[i] >> 4);
    }
  } else {
    for (int part = 0; part < 4; ++part)
      for (int i = 0; i < kSize / 4; ++i) {
        int code = bytes[i] >> (2 * part) & 3;
        if constexpr (kType == KvType::kQ3) {
          const int at = part * (kSize / 4) + i;
          code |= (bytes[kSize / 4 + at % (kSize / 8)] >> (at / (kSize / 8)) & 1) << 2;
        }
        out[part * (kSize / 4) + i] = static_cast<float>(code);
      }
  }
}

// Of any number of elements.
template <KvType kType>
inline int code_at(const std::byte* from, int count, int i) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
  if constexpr (kType == KvType::kQ4 || kType == KvType::kQ4O) {
    const int half = (count + 1) / 2;
    return bytes[i % half] >> (4 * (i / half)) & 15;
  }
  const int quarter = (count + 3) / 4;
  int code = bytes[i % quarter] >> (2 * (i / quarter)) & 3;
  if constexpr (kType == KvType::kQ3) {
    const int eighth = (count + 7) / 8;
    code |= (bytes[quarter + i % eighth] >> (i / eighth) & 1) << 2;
  }
  return code;
}

// Rows of `count` elements each, in groups with {scale, least}.
template <KvType kType>
inline void decode_rows(const std::byte* codes, const std::byte* scales, int rows, int count, float* out) {
  for (int row = 0; row < rows; ++row)
    for (int group = 0; group < code_groups(count); ++group, scales += 4) {
      const int size = group_size(count, group);
      const float scale = half_at(scales);
      const float least = half_at(scales + 2);
      if (size == kCodecGroup) {
        whole_codes<kType, kCodecGroup>(codes, out);
      } else if (size == 16) {
        whole_codes<kType, 16>(codes, out);
      } else {
        for (int i = 0; i < size; ++i) out[i] = static_cast<float>(code_at<kType>(codes, size, i));
      }
      for (int i = 0; i < size; ++i) out[i] = least + scale * out[i];
      codes += code_bytes(kType, size);
      out += size;
    }
}

inline void put_outliers(const std::byte* outliers, int count, float* out) {
  for (int i = 0; i < count; ++i, outliers += kOutlierBytes) {
    std::uint16_t place;
    __builtin_memcpy(&place, outliers, sizeof place);
    if (place != kNoPlace) out[place] = half_at(outliers + 2);
  }
}

inline void decode_q8_keys(const PageFormat& format, const std::byte* page, float* out) {
  const auto* codes = reinterpret_cast<const std::int8_t*>(page);
  const std::byte* scales = page + static_cast<std::size_t>(format.head_dim * format.slots);
  float scale[64];
  for (int d = 0; d < format.head_dim; ++d, codes += format.slots, out += format.slots) {
    if (d % kCodecGroup == 0)
      for (int s = 0; s < format.slots; ++s, scales += 2) scale[s] = half_at(scales);
    for (int s = 0; s < format.slots; ++s) out[s] = scale[s] * static_cast<float>(codes[s]);
  }
}

inline void decode_q8_values(const PageFormat& format, const std::byte* values, float* out) {
  const auto* codes = reinterpret_cast<const std::int8_t*>(values);
  const std::byte* scales = values + static_cast<std::size_t>(format.head_dim * format.slots);
  for (int s = 0; s < format.slots; ++s)
    for (int group = 0; group < code_groups(format.head_dim); ++group, scales += 2) {
      const float scale = half_at(scales);
      const int size = group_size(format.head_dim, group);
      for (int i = 0; i < size; ++i) out[i] = scale * static_cast<float>(codes[i]);
      codes += size;
      out += size;
    }
}

// Codes with {scale, least}, then what of them is kept apart.
inline void decode_side(KvType type, const std::byte* side, int rows, int count, int apart, float* out) {
  const std::byte* scales = side + static_cast<std::size_t>(rows) * row_code_bytes(type, count);
  switch (type) {
    case KvType::kQ4: return decode_rows<KvType::kQ4>(side, scales, rows, count, out);
    case KvType::kQ3: return decode_rows<KvType::kQ3>(side, scales, rows, count, out);
    case KvType::kQ2: return decode_rows<KvType::kQ2>(side, scales, rows, count, out);
    case KvType::kQ4O:
      decode_rows<KvType::kQ4O>(side, scales, rows, count, out);
      return put_outliers(scales + static_cast<std::size_t>(rows * code_groups(count)) * 4, apart, out);
    default: return;
  }
}

[[gnu::always_inline]] inline float plain_element(KvType type, const std::byte* p) {
  if (type == KvType::kF16) return half_at(p);
  std::uint32_t bits = 0;
  if (type == KvType::kF32) {
    __builtin_memcpy(&bits, p, 4);
  } else {
    std::uint16_t high;
    __builtin_memcpy(&high, p, 2);
    bits = static_cast<std::uint32_t>(high) << 16;
  }
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline void load_side(KvType type, const std::byte* side, int count, float* out) {
  const std::size_t size = kv_type_bytes(type);
  for (int i = 0; i < count; ++i) out[i] = plain_element(type, side + static_cast<std::size_t>(i) * size);
}

// keys: [head_dim][slots].
inline void decode_keys(const PageFormat& format, const std::byte* page, float* keys) {
  if (format.key == KvType::kQ8) return decode_q8_keys(format, page, keys);
  if (is_encoded(format.key))
    return decode_side(format.key, page, format.head_dim, format.slots, outliers(format), keys);
  load_side(format.key, page, format.head_dim * format.slots, keys);
}

// values: [slots][head_dim]. `page` is the start of the page.
inline void decode_values(const PageFormat& format, const std::byte* page, float* values) {
  const std::byte* side = page + values_offset(format);
  if (format.value == KvType::kQ8) return decode_q8_values(format, side, values);
  if (is_encoded(format.value))
    return decode_side(format.value, side, format.slots, format.head_dim, outliers(format), values);
  load_side(format.value, side, format.head_dim * format.slots, values);
}

}  // namespace
}  // namespace kvasir
