#include "backend/cpu/kernels/avx512/quantized_instructions.h"

namespace kvasir {

void avx512::quantized_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end,
                              float* out, std::size_t out_stride) {
  kvasir::quantized_matmul<Avx512>(weights, x, panel_begin, panel_end, out, out_stride);
}

}  // namespace kvasir
