// Declarations of the AMX kernels; see kernels/kernels.h for what each does.
#pragma once

#include "backend/cpu/kernels/kernels.h"

namespace kvasir::amx {

// As avx512::matmul, to the bit; quantised weights times many rows on the tile unit.
void matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
            std::size_t out_stride);

}  // namespace kvasir::amx
