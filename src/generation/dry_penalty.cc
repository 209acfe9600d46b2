#include "generation/dry_penalty.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

constexpr double kMostPenalty = 1e6;

}  // namespace

DryPenalty::DryPenalty(const SamplingOptions& options)
    : multiplier_(static_cast<double>(options.dry_multiplier)),
      base_(static_cast<double>(options.dry_base)),
      allowed_length_(options.dry_allowed_length),
      window_(static_cast<std::size_t>(options.dry_window)) {}

void DryPenalty::observe(TokenId token) {
  if (!active()) return;
  if (observed_.size() == 2 * window_)
    observed_.erase(observed_.begin(), observed_.begin() + static_cast<std::ptrdiff_t>(window_));
  observed_.push_back(token);
}

std::span<const TokenId> DryPenalty::tokens() const {
  return std::span(observed_).last(std::min(observed_.size(), window_));
}

std::unordered_map<TokenId, double> DryPenalty::penalties() const {
  std::unordered_map<TokenId, double> penalties;
  if (!active()) return penalties;
  const std::span<const TokenId> context = tokens();
  const std::size_t count = context.size();
  const auto newest = [&](std::size_t age) { return context[count - 1 - age]; };
  // No repetition is longer than the run of tokens since the last breaker.
  std::size_t most = 0;
  while (most < count && newest(most) != kNoToken) ++most;
  // Z-function of the context read backwards: the length[i] tokens up to the one of age i equal the newest ones.
  std::vector<std::size_t> length(count, 0);
  std::size_t left = 0, right = 0;
  for (std::size_t i = 1; i < count; ++i) {
    std::size_t n = i < right ? std::min(right - i, length[i - left]) : 0;
    while (n < most && i + n < count && newest(n) == newest(i + n)) ++n;
    length[i] = n;
    if (i + n > right) {
      left = i;
      right = i + n;
    }
    const TokenId next = newest(i - 1);
    const auto excess = static_cast<std::ptrdiff_t>(n) - allowed_length_;
    if (excess < 0 || next == kNoToken) continue;
    double& penalty = penalties[next];
    penalty = std::max(penalty, std::min(multiplier_ * std::pow(base_, static_cast<double>(excess)), kMostPenalty));
  }
  return penalties;
}

}  // namespace kvasir
