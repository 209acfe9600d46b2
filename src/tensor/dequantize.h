// Decodes blocks of quantised weights, by the published definition of each format: ggml's legacy quants, k-quants,
// i-quants and ternary quants, and MXFP4 of the OCP Microscaling Formats.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace kvasir {

// Writes the dtype_traits(type).block_elements values of one block. Any bytes are a valid block. REQUIRES: a quantised
// type.
void dequantize_block(DType type, const std::byte* block, float* out);

// Value of each 4-bit code of IQ4_NL and IQ4_XS, before the scale.
inline constexpr signed char kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

// Twice the value of each 4-bit code of MXFP4 (e2m1), before the scale.
inline constexpr signed char kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Half the scale of a block of MXFP4, whose byte is e: 2^(e - 128). The format calls 255 a NaN; ggml does not, and
// neither does Kvasir.
[[gnu::always_inline]] inline float half_of_e8m0(std::uint32_t e) {
  return __builtin_bit_cast(float, e < 2 ? (e + 1) << 21 : (e - 1) << 23);
}

}  // namespace kvasir
