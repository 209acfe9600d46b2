// Declarations of the AMX kernels; see kernels/kernels.h for what each does.
#pragma once

#include "backend/cpu/kernels/kernels.h"

namespace kvasir::amx {

// Gives the bits of the AVX-512 matmul except for BF16 weights. Quantised weights times many rows use the tile unit.
void matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
            std::size_t out_stride);

// Products of BF16 weights with rows that are rounded to bf16 (nearest even). The bits are the same for any number of
// rows: those of the tile unit. Of each 32 inputs, products of the even ones and of the odd ones are two chains of
// fused multiply-adds in order, and their sum is added to the total (Intel's manual, TDPBF16PS); denormals are zero.
void bf16_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                 std::size_t out_stride);

// As avx512's, but over pages of 16 bits on the tile unit: see attention.cc.
void attend(const AttentionPartial& partial, const AttentionState& state);
void attend_gathered(const AttentionPartial& partial, const GatheredEntry* entries, const AttentionState& state);

}  // namespace kvasir::amx
