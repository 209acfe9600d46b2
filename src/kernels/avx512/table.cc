// Compiled without AVX-512 flags: it runs on any machine, to say whether the table does.
#include "kernels/avx512/simd_table.h"

namespace kvasir {

const KernelTable* avx512_kernels() {
  static constexpr KernelTable table{"avx512",     avx512::matmul,   avx512::quantize_q8, avx512::rms_norm,
                                     avx512::swiglu, avx512::add,    avx512::rope,        avx512::store_kv,
                                     avx512::rotate_keys, avx512::attend, avx512::merge,  avx512::finish};
  static const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
  return runs ? &table : nullptr;
}

}  // namespace kvasir
