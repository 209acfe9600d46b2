// Compiled without AVX-512 flags: it runs on any machine, to say whether the table does.
#include "backend/cpu/kernels/avx512/simd_table.h"

namespace kvasir {

const KernelTable* avx512_kernels() {
  // What is not worth vectors of its own is the generic kernel's.
  static const KernelTable table = [] {
    KernelTable t = generic_kernels();
    t.name = t.arithmetic = "avx512";
    t.matmul = avx512::matmul;
    t.quantize_q8 = avx512::quantize_q8;
    t.rms_norm = avx512::rms_norm;
    t.layer_norm = avx512::layer_norm;
    t.activate = avx512::activate;
    t.add = avx512::add;
    t.store_kv = avx512::store_kv;
    t.rotate_keys = avx512::rotate_keys;
    t.move_slots = avx512::move_slots;
    t.attend = avx512::attend;
    t.attend_apart = avx512::attend_apart;
    t.merge = avx512::merge;
    t.observe_weights = avx512::observe_weights;
    t.score_chunks = avx512::score_chunks;
    t.sum_weights = avx512::sum_weights;
    t.add_weights = avx512::add_weights;
    return t;
  }();
  static const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
  return runs ? &table : nullptr;
}

}  // namespace kvasir
