#include "quality/divergence.h"

#include <algorithm>
#include <cmath>

namespace kvasir {

LogitDivergence compare_logits(std::span<const float> right, std::span<const float> other) {
  const auto p_largest = std::max_element(right.begin(), right.end());
  const auto q_largest = std::max_element(other.begin(), other.end());
  double p_sum = 0;
  double q_sum = 0;
  double difference = 0;  // sum of exp(p logit) (p logit - q logit), both relative to their largest
  for (std::size_t i = 0; i < right.size(); ++i) {
    const double p = static_cast<double>(right[i]) - static_cast<double>(*p_largest);
    const double q = static_cast<double>(other[i]) - static_cast<double>(*q_largest);
    const double weight = std::exp(p);
    p_sum += weight;
    q_sum += std::exp(q);
    difference += weight * (p - q);
  }
  const double kld = difference / p_sum - std::log(p_sum) + std::log(q_sum);
  // The divergence is never negative; only rounding can make it so.
  return {kld < 0 ? 0 : kld, p_largest - right.begin() == q_largest - other.begin()};
}

}  // namespace kvasir
