#include "backend/cpu/kernels/elementwise.h"

#include "backend/cpu/kernels/avx2/simd.h"

void kvasir::avx2::set_elementwise(KernelTable& table) {
  Elementwise<Vectors>::set(table);
}
