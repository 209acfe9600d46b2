#include "generation/truncation.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvasir {
namespace {

double entropy(const std::vector<TokenCandidate>& candidates, double total) {
  double sum = 0;
  for (const TokenCandidate& candidate : candidates) {
    const double p = candidate.weight / total;
    if (p > 0) sum -= p * std::log(p);
  }
  return sum;
}

bool comes_first(const TokenCandidate& a, const TokenCandidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

}  // namespace

double weigh(std::vector<TokenCandidate>& candidates, double temperature) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const TokenCandidate& candidate : candidates) largest = std::max(largest, static_cast<double>(candidate.logit));
  double total = 0;
  for (TokenCandidate& candidate : candidates) {
    // The difference of equal infinities would be NaN.
    candidate.weight = candidate.logit == largest ? 1.0 : std::exp((candidate.logit - largest) / temperature);
    total += candidate.weight;
  }
  return total;
}

void keep_top_n_sigma(std::vector<TokenCandidate>& candidates, std::span<const float> logits, double n) {
  double sum = 0, count = 0, largest = -std::numeric_limits<double>::infinity();
  for (const TokenCandidate& candidate : candidates) largest = std::max(largest, static_cast<double>(candidate.logit));
  if (!std::isfinite(largest)) return;
  for (const float logit : logits)
    if (std::isfinite(logit)) {
      sum += static_cast<double>(logit);
      ++count;
    }
  const double mean = sum / count;
  double squares = 0;
  for (const float logit : logits)
    if (std::isfinite(logit)) squares += (static_cast<double>(logit) - mean) * (static_cast<double>(logit) - mean);
  const double least = largest - n * std::sqrt(squares / count);
  std::erase_if(candidates,
                [&](const TokenCandidate& candidate) { return static_cast<double>(candidate.logit) < least; });
}

void keep_typical(std::vector<TokenCandidate>& candidates, double total, double p) {
  const double mean = entropy(candidates, total);
  const auto distance = [&](const TokenCandidate& candidate) {
    return std::abs(-std::log(candidate.weight / total) - mean);
  };
  std::sort(candidates.begin(), candidates.end(), [&](const TokenCandidate& a, const TokenCandidate& b) {
    const double to_a = distance(a), to_b = distance(b);
    return to_a < to_b || (to_a == to_b && comes_first(a, b));
  });
  const double wanted = total * p;
  double mass = 0;
  std::size_t kept = 0;
  while (mass < wanted && kept < candidates.size()) mass += candidates[kept++].weight;
  candidates.resize(kept);
}

void exclude_top_choices(std::vector<TokenCandidate>& candidates, double total, double threshold) {
  std::sort(candidates.begin(), candidates.end(), comes_first);
  const auto unlikely = std::find_if(candidates.begin(), candidates.end(), [&](const TokenCandidate& candidate) {
    return candidate.weight / total < threshold;
  });
  if (unlikely - candidates.begin() > 1) candidates.erase(candidates.begin(), unlikely - 1);
}

double dynamic_temperature(const std::vector<TokenCandidate>& candidates, double total, double temperature,
                           double range, double exponent) {
  if (candidates.size() < 2) return temperature;
  const double least = std::max(0.0, temperature - range);
  const double share = entropy(candidates, total) / std::log(static_cast<double>(candidates.size()));
  return least + (temperature + range - least) * std::pow(std::min(share, 1.0), exponent);
}

}  // namespace kvasir
