#include "backend/cpu/kernels/encoded_attention.h"

#include "backend/cpu/kernels/avx2/simd.h"

void kvasir::avx2::attend_encoded(const AttentionPartial& partial, const AttentionState& state) {
  EncodedAttention<Vectors>::attend(partial, state);
}
