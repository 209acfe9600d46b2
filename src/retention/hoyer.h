// Hoyer sparsity (Hoyer 2004; Lethe, Zeng et al., Eq. 1): how concentrated a distribution of attention is.
// Thread-safety: a pure function of its argument.
#pragma once

#include <cmath>
#include <span>

namespace kvasir {

// Returns (sqrt(n) - |x|_1 / |x|_2) / (sqrt(n) - 1), between 0 (all equal) and 1 (one element holds all). Returns 0 for
// fewer than two elements and if all are 0. Independent of the scale of the mass.
inline double hoyer_sparsity(std::span<const double> mass) {
  double absolute = 0, squares = 0;
  for (const double value : mass) {
    absolute += std::abs(value);
    squares += value * value;
  }
  if (mass.size() < 2 || squares == 0) return 0;
  const double root = std::sqrt(static_cast<double>(mass.size()));
  return (root - absolute / std::sqrt(squares)) / (root - 1);
}

}  // namespace kvasir
