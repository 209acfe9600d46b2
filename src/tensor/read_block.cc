#include "tensor/read_block.h"

#include "tensor/dequantize.h"

namespace kvasir {

void read_block(DType type, const std::byte* block, float* out) {
  if (is_quantized(type)) {
    dequantize_block(type, block, out);
  } else {
    *out = read_element(type, block);
  }
}

}  // namespace kvasir
