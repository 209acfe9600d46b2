#include <algorithm>

#include "backend/cpu/kernels/kernels.h"

namespace kvasir {
namespace {

// Those that run on this machine, the slowest first.
std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> all = {&generic_kernels(), avx2_kernels(), avx512_kernels(), amx_kernels()};
  std::erase(all, nullptr);
  return all;
}

}  // namespace

#ifndef KVASIR_HAVE_X86_VECTORS
const KernelTable* avx2_kernels() {
  return nullptr;
}
const KernelTable* avx512_kernels() {
  return nullptr;
}
const KernelTable* amx_kernels() {
  return nullptr;
}
#endif

std::vector<std::string_view> kernel_names() {
  std::vector<std::string_view> names;
  for (const KernelTable* table : tables()) names.push_back(table->name);
  return names;
}

const KernelTable* find_kernels(std::string_view name) {
  const std::vector<const KernelTable*> all = tables();
  if (name == "auto") return all.back();
  const auto found = std::ranges::find(all, name, &KernelTable::name);
  return found != all.end() ? *found : nullptr;
}

}  // namespace kvasir
