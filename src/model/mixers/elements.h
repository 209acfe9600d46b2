// Functions of single elements that recurrences share, and how their loops are compiled.
// Thread-safety: pure functions.
#pragma once

#include <cmath>

// Wider vectors where the processor has them. The files are compiled without contraction, and each element has a sum of
// its own, so that all give the same bits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KVASIR_WIDE_VECTORS __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define KVASIR_WIDE_VECTORS
#endif

namespace kvasir {

inline float logistic(float x) {
  return 1 / (1 + std::exp(-x));
}

inline float softplus(float x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

}  // namespace kvasir
