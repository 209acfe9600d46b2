// Declarations of the generic kernels that have a file of their own. Internal to this folder.
#pragma once

#include "backend/cpu/kernels/kernels.h"

namespace kvasir::generic {

// REQUIRES: quantised weights.
void quantized_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                      std::size_t out_stride);

void attend(const AttentionPartial& partial, const AttentionState& state);

}  // namespace kvasir::generic
