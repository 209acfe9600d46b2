// Sizes of what a page consists of, by type. The order of the parts is that of backend/cpu/kernels/pages/page_layout.h.
// Inline everywhere: kernels of all instruction sets use it.
#pragma once

#include <cstddef>

#include "backend/page_format.h"

namespace kvasir {

inline constexpr int kCodecGroup = 32;  // elements of a group, but for the last one of a row

// Bits of the codes of a type. REQUIRES: is_encoded(type).
[[gnu::always_inline]] constexpr int code_bits(KvType type) {
  return type == KvType::kQ8 ? 8 : type == KvType::kQ3 ? 3 : type == KvType::kQ2 ? 2 : 4;
}

// Groups in a row of `count` elements.
[[gnu::always_inline]] constexpr int code_groups(int count) {
  return (count + kCodecGroup - 1) / kCodecGroup;
}

// Elements of group `group` of a row of `count`.
[[gnu::always_inline]] constexpr int group_size(int count, int group) {
  const int left = count - group * kCodecGroup;
  return left < kCodecGroup ? left : kCodecGroup;
}

// Codes of a side: its rows, rounded up to pairs, of `count` elements each.
[[gnu::always_inline]] constexpr int side_codes(int rows, int count) {
  return (rows + 1) / 2 * 2 * count;
}

inline constexpr std::size_t kWordScaleBytes = 4;  // a float: the scale of a token's key, or value, in i16

// Bytes in front of the scales of a side in i16.
[[gnu::always_inline]] constexpr std::size_t word_scales_offset(int rows, int count) {
  return static_cast<std::size_t>(side_codes(rows, count)) * 2;
}

// Bytes of a side that is not encoded: `rows` of `count` elements.
[[gnu::always_inline]] constexpr std::size_t plain_side_bytes(KvType type, int rows, int count, int slots) {
  if (type == KvType::kI16) return word_scales_offset(rows, count) + static_cast<std::size_t>(slots) * kWordScaleBytes;
  return static_cast<std::size_t>(rows * count) * kv_type_bytes(type);
}

// Bytes of so many codes. REQUIRES: a multiple of 16, as sides have.
[[gnu::always_inline]] constexpr std::size_t code_bytes(KvType type, int codes) {
  return static_cast<std::size_t>(code_bits(type)) * static_cast<std::size_t>(codes) / 8;
}

// Outliers of a side: elements that q4o keeps in 16 bits.
[[gnu::always_inline]] constexpr int outliers(const PageFormat& format) {
  return (format.head_dim * format.slots + 99) / 100;
}
inline constexpr std::size_t kOutlierBytes = 4;  // u16 place, f16 value

// Rows of keys are dimensions of all slots, rows of values slots of all dimensions.
[[gnu::always_inline]] constexpr std::size_t encoded_side_bytes(KvType type, int rows, int count, int scales,
                                                                int outliers) {
  return code_bytes(type, side_codes(rows, count)) + static_cast<std::size_t>(scales) * (type == KvType::kQ8 ? 2 : 4) +
         (type == KvType::kQ4O ? static_cast<std::size_t>(outliers) * kOutlierBytes : 0);
}

// Scales of an encoded side.
[[gnu::always_inline]] constexpr int key_scales(const PageFormat& format) {
  return format.key == KvType::kQ8 ? code_groups(format.head_dim) * format.slots
                                   : code_groups(format.slots) * format.head_dim;
}
[[gnu::always_inline]] constexpr int value_scales(const PageFormat& format) {
  return code_groups(format.head_dim) * format.slots;
}

[[gnu::always_inline]] constexpr std::size_t key_side_bytes(const PageFormat& format) {
  if (!is_encoded(format.key)) return plain_side_bytes(format.key, format.head_dim, format.slots, format.slots);
  return encoded_side_bytes(format.key, format.head_dim, format.slots, key_scales(format), outliers(format));
}

[[gnu::always_inline]] constexpr std::size_t value_side_bytes(const PageFormat& format) {
  if (format.latent) return 0;
  if (!is_encoded(format.value)) return plain_side_bytes(format.value, format.slots, format.head_dim, format.slots);
  return encoded_side_bytes(format.value, format.slots, format.head_dim, value_scales(format), outliers(format));
}

}  // namespace kvasir
