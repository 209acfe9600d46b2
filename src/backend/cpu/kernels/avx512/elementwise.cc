#include "backend/cpu/kernels/elementwise.h"

#include "backend/cpu/kernels/avx512/simd.h"

void kvasir::avx512::set_elementwise(KernelTable& table) {
  Elementwise<Vectors>::set(table);
}
