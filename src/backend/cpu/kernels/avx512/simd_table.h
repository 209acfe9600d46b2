// Declarations of the AVX-512 kernels; see kernels/kernels.h for what each does.
#pragma once

#include "backend/cpu/kernels/kernels.h"

namespace kvasir {

// The functions of the table, each in the file of its kind.
namespace avx512 {
void matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
            std::size_t out_stride);
void quantized_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                      std::size_t out_stride);
void quantize_q8(const float* x, int inputs, const MutableQ8Rows& place);
void rms_norm(const float* x, const float* weight, int n, float eps, float* out);
void layer_norm(const float* x, const float* weight, const float* bias, int n, float eps, float* out);
void activate(ActivationFunction function, const float* x, const float* factor, int n, float* out);
void add(float* x, const float* y, int n);
void store_kv(const PageFormat& shape, std::byte* page, int slot, const float* key, const float* value);
void rotate_keys(const PageFormat& shape, std::byte* page, SlotMask slots, int rotary, const float* cosine,
                 const float* sine);
void move_slots(const PageFormat& shape, const std::byte* from, SlotMask from_slots, std::byte* to, int to_slot,
                int rotary, const float* cosine, const float* sine);
void attend(const AttentionPartial& partial, const AttentionState& state);
void attend_apart(const AttentionPartial& partial, const ApartEntry* apart, const AttentionState& state);
// REQUIRES: head_dim a multiple of 16; all formats encoded.
void attend_encoded(const AttentionPartial& partial, const AttentionState& state);
void merge(const AttentionState& into, const AttentionState& from, int queries, int head_dim);
int observe_weights(const ObservedQuery& query);
void score_chunks(const float* bounds, const float* queries, int group, int head_dim, float* best);
double sum_weights(const float* weights, int n);
void add_weights(const float* weights, int n, double factor, double* mass);
}  // namespace avx512

}  // namespace kvasir
