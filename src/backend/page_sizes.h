// Sizes of what a page consists of, by type. The order of the parts is that of backend/cpu/kernels/page_layout.h.
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

// Bytes of the codes of `count` elements of a group: 3 bits are two planes, of 2 bits and of 1.
[[gnu::always_inline]] constexpr std::size_t code_bytes(KvType type, int count) {
  const auto n = static_cast<std::size_t>(count);
  if (type == KvType::kQ3) return (2 * n + 7) / 8 + (n + 7) / 8;
  return (static_cast<std::size_t>(code_bits(type)) * n + 7) / 8;
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

// Bytes of all codes of a row of `count` elements.
[[gnu::always_inline]] constexpr std::size_t row_code_bytes(KvType type, int count) {
  const int last = count % kCodecGroup;
  return static_cast<std::size_t>(count / kCodecGroup) * code_bytes(type, kCodecGroup) +
         (last > 0 ? code_bytes(type, last) : 0);
}

// Elements of a side that q4o keeps apart.
[[gnu::always_inline]] constexpr int outliers(const PageFormat& format) {
  return (format.head_dim * format.slots + 99) / 100;
}
inline constexpr std::size_t kOutlierBytes = 4;  // u16 place, f16 value

[[gnu::always_inline]] constexpr std::size_t key_side_bytes(const PageFormat& format) {
  const auto dim = static_cast<std::size_t>(format.head_dim);
  const auto slots = static_cast<std::size_t>(format.slots);
  if (!is_encoded(format.key)) return dim * slots * kv_type_bytes(format.key);
  if (format.key == KvType::kQ8)
    return dim * slots + static_cast<std::size_t>(code_groups(format.head_dim)) * slots * 2;
  return dim * (row_code_bytes(format.key, format.slots) + static_cast<std::size_t>(code_groups(format.slots)) * 4) +
         (format.key == KvType::kQ4O ? static_cast<std::size_t>(outliers(format)) * kOutlierBytes : 0);
}

[[gnu::always_inline]] constexpr std::size_t value_side_bytes(const PageFormat& format) {
  const auto slots = static_cast<std::size_t>(format.slots);
  if (!is_encoded(format.value)) return static_cast<std::size_t>(format.head_dim) * slots * kv_type_bytes(format.value);
  const std::size_t scales = format.value == KvType::kQ8 ? 2 : 4;
  return slots * (row_code_bytes(format.value, format.head_dim) +
                  static_cast<std::size_t>(code_groups(format.head_dim)) * scales) +
         (format.value == KvType::kQ4O ? static_cast<std::size_t>(outliers(format)) * kOutlierBytes : 0);
}

}  // namespace kvasir
