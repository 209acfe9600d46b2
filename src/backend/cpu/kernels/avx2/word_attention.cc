#include "backend/cpu/kernels/word_attention.h"

#include "backend/cpu/kernels/avx2/simd.h"

void kvasir::avx2::attend_words(const AttentionPartial& partial, const AttentionState& state) {
  WordAttention<Vectors>::attend(partial, state);
}
