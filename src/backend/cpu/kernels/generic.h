// Declarations of the generic kernels that have a file of their own. Internal to this folder.
#pragma once

#include "backend/cpu/kernels/kernels.h"

namespace kvasir::generic {

// REQUIRES: quantised weights.
void quantized_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                      std::size_t out_stride);

void attend(const AttentionPartial& partial, const AttentionState& state);
void attend_gathered(const AttentionPartial& partial, const GatheredEntry* entries, const AttentionState& state);

// Attention to gathered entries by way of pages: each entry's rows are placed in one, which `attend` reads.
void attend_placed(const AttentionPartial& partial, const GatheredEntry* entries, const AttentionState& state,
                   void (*attend)(const AttentionPartial& partial, const AttentionState& state));

}  // namespace kvasir::generic
