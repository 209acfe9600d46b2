// The elementwise functions of feed-forward networks.
#pragma once

namespace kvasir {

enum class ActivationFunction {
  kSilu,      // x / (1 + exp(-x)) (Elfwing et al. 2017, equation 5)
  kGelu,      // x * (1 + erf(x / sqrt 2)) / 2 (Hendrycks & Gimpel 2016, equation 1)
  kGeluTanh,  // x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2 (the same, section 2: its approximation)
};

}  // namespace kvasir
