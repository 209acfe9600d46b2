// Reads blocks of elements of any type, quantised or not.
// Thread-safety: pure function.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace kvasir {

// Writes the dtype_traits(type).block_elements values of one block: of a type that is not quantised, one element.
void read_block(DType type, const std::byte* block, float* out);

}  // namespace kvasir
