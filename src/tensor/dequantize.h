// Decodes blocks of quantised weights, by the published definition of each format (ggml's k-quants and legacy quants).
// Thread-safety: pure functions.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace kvasir {

// Writes the dtype_traits(type).block_elements values of one block. Any bytes are a valid block. REQUIRES: a quantised
// type.
void dequantize_block(DType type, const std::byte* block, float* out);

// Value of each 4-bit code of IQ4_NL and IQ4_XS, before the scale.
inline constexpr signed char kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace kvasir
