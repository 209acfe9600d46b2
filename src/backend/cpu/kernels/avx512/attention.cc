#include "backend/cpu/kernels/attention.h"

#include "backend/cpu/kernels/avx512/simd.h"

void kvasir::avx512::set_attention(KernelTable& table) {
  Attention<Vectors, attend_encoded, attend_words>::set(table);
}
