// The kernels of vector instructions, kind by kind; see kernels.h for what each does. A function that sets kernels of a
// table is compiled for their instructions: it is called where they run.
#pragma once

#include "backend/cpu/kernels/kernels.h"

namespace kvasir {

namespace avx2 {
void set_elementwise(KernelTable& table);
void set_attention(KernelTable& table);
void set_matmul(KernelTable& table);
// REQUIRES: head_dim a multiple of 16; all formats encoded.
void attend_encoded(const AttentionPartial& partial, const AttentionState& state);
// REQUIRES: head_dim a multiple of 16; all formats i16.
void attend_words(const AttentionPartial& partial, const AttentionState& state);
// REQUIRES: quantised weights.
void quantized_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                      std::size_t out_stride);
}  // namespace avx2

// The same.
namespace avx512 {
void set_elementwise(KernelTable& table);
void set_attention(KernelTable& table);
void set_matmul(KernelTable& table);
void attend_encoded(const AttentionPartial& partial, const AttentionState& state);
void attend_words(const AttentionPartial& partial, const AttentionState& state);
void quantized_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                      std::size_t out_stride);
}  // namespace avx512

}  // namespace kvasir
