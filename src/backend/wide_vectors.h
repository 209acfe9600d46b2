// How loops over plain floats are compiled outside the kernels. Files are compiled without contraction, so every
// version gives the same bits if each element has a sum of its own.
#pragma once

// KVASIR_WIDE_VECTORS compiles a function for wider vectors as well, and calls the widest that the processor has.
// KVASIR_AVX512_VECTORS compiles it for vectors of 64 bytes alone: call it only where has_avx512_vectors().
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KVASIR_WIDE_VECTORS __attribute__((target_clones("default", "avx2", "avx512f")))
#define KVASIR_AVX512_VECTORS __attribute__((target("avx512f")))
namespace kvasir {
inline bool has_avx512_vectors() {
  return __builtin_cpu_supports("avx512f") != 0;
}
}  // namespace kvasir
#else
#define KVASIR_WIDE_VECTORS
#define KVASIR_AVX512_VECTORS
namespace kvasir {
inline bool has_avx512_vectors() {
  return false;
}
}  // namespace kvasir
#endif
