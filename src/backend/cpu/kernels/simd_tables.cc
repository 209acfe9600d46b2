// Compiled without flags of vector instructions: it runs on any machine, to say which tables do. What is not worth
// vectors of its own is the generic kernel's.
#include <cpuid.h>

#include "backend/cpu/kernels/simd_table.h"

namespace kvasir {
namespace {

// clang 14's __builtin_cpu_supports does not know "f16c".
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

const KernelTable* avx2_kernels() {
  static const bool runs =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") && has_f16c();
  if (!runs) return nullptr;
  static const KernelTable table = [] {
    KernelTable t = generic_kernels();
    t.name = "avx2";
    t.arithmetic = "avx512";
    t.prefers_words = true;
    avx2::set_elementwise(t);
    avx2::set_attention(t);
    avx2::set_matmul(t);
    return t;
  }();
  return &table;
}

const KernelTable* avx512_kernels() {
  static const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
  if (!runs) return nullptr;
  static const KernelTable table = [] {
    KernelTable t = generic_kernels();
    t.name = t.arithmetic = "avx512";
    t.prefers_words = true;
    avx512::set_elementwise(t);
    avx512::set_attention(t);
    avx512::set_matmul(t);
    return t;
  }();
  return &table;
}

}  // namespace kvasir
