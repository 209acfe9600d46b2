// How loops over plain floats are compiled outside the kernels.
#pragma once

// Compiles a function for wider vectors as well, and calls the widest that the processor has. Files are compiled
// without contraction, so every version gives the same bits if each element has a sum of its own.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KVASIR_WIDE_VECTORS __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define KVASIR_WIDE_VECTORS
#endif
