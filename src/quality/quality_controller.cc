#include "quality/quality_controller.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr std::int64_t kRemembered = 16;  // checks
constexpr std::int64_t kFewest = 2;       // checks of one budget that count as evidence

}  // namespace

std::int64_t QualityController::add(std::span<const double> samples) {
  KVASIR_CHECK(!samples.empty());
  const double total = std::accumulate(samples.begin(), samples.end(), 0.0);
  const double newest = total / static_cast<double>(samples.size());
  sum_ += total;
  squares_ += std::inner_product(samples.begin(), samples.end(), samples.begin(), 0.0);
  recent_sum_ += total;
  compared_ += std::ssize(samples);
  recent_compared_ += std::ssize(samples);
  ++checks_;
  ++recent_checks_;
  largest_mean_ = std::max(largest_mean_, newest);
  const double recent = recent_sum_ / static_cast<double>(recent_compared_);
  const double upper = upper_mean();
  if (upper > bound_) {
    if (recent > bound_ / 2) grow(std::max(recent, upper) / bound_);
  } else if (recent > bound_ && (recent_checks_ >= kFewest || newest > 2 * bound_)) {
    grow(recent / bound_);
  } else if (recent_checks_ >= kFewest && upper < 0.8 * bound_ && recent < bound_ / 2) {
    shrink();
  }
  return budget_;
}

double QualityController::upper_mean() const {
  return mean() + std::sqrt(squares_) / static_cast<double>(compared_);
}

void QualityController::grow(double excess) {
  too_small_ = budget_;
  too_small_at_ = checks_;
  const double factor = excess > 4 ? 3 : excess > 2 ? 2 : 1.5;
  // A budget is at most 2^40, so the product is exact enough.
  const auto wanted = static_cast<std::int64_t>(std::ceil(static_cast<double>(budget_) * factor));
  set_budget((wanted + range_.unit - 1) / range_.unit * range_.unit);
}

void QualityController::shrink() {
  std::int64_t wanted = budget_ * 4 / 5 / range_.unit * range_.unit;
  const bool remembers = too_small_ > 0 && checks_ - too_small_at_ <= kRemembered;
  if (remembers && wanted <= too_small_) wanted = too_small_ / range_.unit * range_.unit + range_.unit;
  if (wanted < budget_) set_budget(wanted);
}

void QualityController::set_budget(std::int64_t budget) {
  budget = std::clamp(budget, range_.least, range_.most);
  if (budget == budget_) return;
  budget_ = budget;
  recent_sum_ = 0;
  recent_compared_ = recent_checks_ = 0;
}

}  // namespace kvasir
