// The layout of a KV page in memory: known to the kernel tables, nowhere else.
//   keys    [head_dim][slots]   dimension-major: one query element is multiplied with all slots at once
//   values  [slots][head_dim]   token-major: one weight is multiplied with a whole value
// Encoded, codes stand in place of the elements, and behind them, as f16:
//   q8 keys    scale [groups of dimensions][slots]
//   q8 values  scale [slots][groups of dimensions]
//   others     {scale, least} of each group: keys [head_dim][groups of slots], values [slots][groups of dimensions]
//   q4o        then its outliers, in order of place: {u16 place, f16 element}; place kNoPlace: none
// Codes of n elements of a group: q8 bytes in two's complement; q4 [n / 2] bytes, the first half of the elements in the
// low bits; q2 [n / 4] bytes, the first quarter in the lowest bits; q3 as q2 their low 2 bits, then [n / 8] bytes, bit
// i of byte j the high bit of element i * n / 8 + j. Parts of a group are rounded up.
// Inline everywhere: kernels of all instruction sets use it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/page_format.h"
#include "backend/page_sizes.h"

namespace kvasir {

inline constexpr std::uint16_t kNoPlace = 0xffff;

// Bytes in front of the values.
[[gnu::always_inline]] inline std::size_t values_offset(const PageFormat& format) {
  return key_side_bytes(format);
}

// Bytes of one token's value. REQUIRES: not encoded.
[[gnu::always_inline]] inline std::size_t value_bytes(const PageFormat& format) {
  return kv_type_bytes(format.value) * static_cast<std::size_t>(format.head_dim);
}

}  // namespace kvasir
