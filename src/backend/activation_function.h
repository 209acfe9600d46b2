// The elementwise functions of feed-forward networks.
#pragma once

namespace kvasir {

enum class ActivationFunction {
  kSilu,      // x / (1 + exp(-x)) (Elfwing et al. 2017, equation 5)
  kGelu,      // x * (1 + erf(x / sqrt 2)) / 2 (Hendrycks & Gimpel 2016, equation 1)
  kGeluTanh,  // x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2 (the same, section 2: its approximation)
  kSigmoid,   // 1 / (1 + exp(-x))
  // Of a gated unit only: gate / (1 + exp(-kSwigluSlope * gate)) * (1 + up), where gate is at most kSwigluLimit, and up
  // is within +-kSwigluLimit (gpt-oss, arXiv 2508.10925, section 2.3).
  kClampedSwiglu,
};

inline constexpr float kSwigluLimit = 7.0F;
inline constexpr float kSwigluSlope = 1.702F;

}  // namespace kvasir
