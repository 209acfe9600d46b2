#include "backend/cpu/kernels/kernels.h"

namespace kvasir {

#ifndef KVASIR_HAVE_AVX512
const KernelTable* avx512_kernels() {
  return nullptr;
}
#endif

std::vector<std::string_view> kernel_names() {
  std::vector<std::string_view> names{generic_kernels().name};
  if (const KernelTable* table = avx512_kernels()) names.push_back(table->name);
  return names;
}

const KernelTable* find_kernels(std::string_view name) {
  if (name == "auto") {
    const KernelTable* best = avx512_kernels();
    return best != nullptr ? best : &generic_kernels();
  }
  if (name == generic_kernels().name) return &generic_kernels();
  const KernelTable* table = avx512_kernels();
  return table != nullptr && name == table->name ? table : nullptr;
}

}  // namespace kvasir
