// The layout of a KV page in memory: known to the kernel tables, nowhere else.
//   keys   [head_dim][slots]   dimension-major: one query element is multiplied with all slots at once
//   values [slots][head_dim]   token-major: one weight is multiplied with a whole value
// Inline everywhere: kernels of all instruction sets use it.
#pragma once

#include <cstddef>

#include "backend/page_format.h"

namespace kvasir {

// Bytes in front of the values.
[[gnu::always_inline]] inline std::size_t values_offset(const PageFormat& format) {
  return kv_type_bytes(format.key) * static_cast<std::size_t>(format.head_dim * format.slots);
}

// Bytes of one token's value.
[[gnu::always_inline]] inline std::size_t value_bytes(const PageFormat& format) {
  return kv_type_bytes(format.value) * static_cast<std::size_t>(format.head_dim);
}

}  // namespace kvasir
