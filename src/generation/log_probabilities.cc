#include "generation/log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/check.h"

namespace kvasir {
namespace {

// log(sum of exp(logit)) = largest + log_sum.
struct Normaliser {
  float largest = -std::numeric_limits<float>::infinity();
  double log_sum = 0;

  double log_probability(float logit) const {
    // The difference of equal infinities would be NaN.
    return logit == largest ? -log_sum : static_cast<double>(logit) - static_cast<double>(largest) - log_sum;
  }
};

Normaliser normalise(std::span<const float> logits) {
  Normaliser normaliser;
  for (const float logit : logits)
    if (logit > normaliser.largest) normaliser.largest = logit;
  double sum = 0;
  for (const float logit : logits)
    if (!std::isnan(logit)) sum += std::exp(normaliser.log_probability(logit));  // log_sum is still 0
  normaliser.log_sum = std::log(sum);
  return normaliser;
}

}  // namespace

std::int64_t rank_of(std::span<const float> logits, TokenId token) {
  KVASIR_CHECK(token >= 0 && static_cast<std::size_t>(token) < logits.size());
  const float own = logits[static_cast<std::size_t>(token)];
  return std::ranges::count_if(logits, [&](float logit) { return logit >= own; });
}

std::vector<TokenLogProbability> top_log_probabilities(std::span<const float> logits, int n) {
  KVASIR_CHECK(n >= 0);
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (!std::isnan(logits[i])) tokens.push_back(static_cast<TokenId>(i));
  const auto logit_of = [&](TokenId token) { return logits[static_cast<std::size_t>(token)]; };
  // By logit, not by log-probability: rounding may make different logits equally likely.
  const auto comes_first = [&](TokenId a, TokenId b) {
    return logit_of(a) > logit_of(b) || (logit_of(a) == logit_of(b) && a < b);
  };
  const std::size_t count = std::min(tokens.size(), static_cast<std::size_t>(n));
  std::partial_sort(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count), tokens.end(), comes_first);
  tokens.resize(count);
  const Normaliser normaliser = normalise(logits);
  std::vector<TokenLogProbability> top;
  top.reserve(count);
  for (const TokenId token : tokens) top.push_back({token, normaliser.log_probability(logit_of(token))});
  return top;
}

double log_probability(std::span<const float> logits, TokenId token) {
  KVASIR_CHECK(token >= 0 && static_cast<std::size_t>(token) < logits.size());
  const float logit = logits[static_cast<std::size_t>(token)];
  if (std::isnan(logit)) return -std::numeric_limits<double>::infinity();
  return normalise(logits).log_probability(logit);
}

}  // namespace kvasir
