// Compiled without AVX2 flags: it runs on any machine, to say whether the table does.
#include <cpuid.h>

#include "backend/cpu/kernels/avx2/simd_table.h"

namespace kvasir {
namespace {

// clang 14's __builtin_cpu_supports does not know "f16c".
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

const KernelTable* avx2_kernels() {
  // What is not worth vectors of its own is the generic kernel's.
  static const KernelTable table = [] {
    KernelTable t = generic_kernels();
    t.name = "avx2";
    t.arithmetic = "avx512";
    t.matmul = avx2::matmul;
    t.quantize_q8 = avx2::quantize_q8;
    t.rms_norm = avx2::rms_norm;
    t.layer_norm = avx2::layer_norm;
    t.activate = avx2::activate;
    t.add = avx2::add;
    t.store_kv = avx2::store_kv;
    t.rotate_keys = avx2::rotate_keys;
    t.move_slots = avx2::move_slots;
    t.attend = avx2::attend;
    t.attend_apart = avx2::attend_apart;
    t.merge = avx2::merge;
    t.observe_weights = avx2::observe_weights;
    t.score_chunks = avx2::score_chunks;
    t.sum_weights = avx2::sum_weights;
    t.add_weights = avx2::add_weights;
    return t;
  }();
  static const bool runs =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") && has_f16c();
  return runs ? &table : nullptr;
}

}  // namespace kvasir
