// Functions of single elements that recurrences share.
// Thread-safety: pure functions.
#pragma once

#include <cmath>

namespace kvasir {

inline float logistic(float x) {
  return 1 / (1 + std::exp(-x));
}

inline float softplus(float x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

}  // namespace kvasir
