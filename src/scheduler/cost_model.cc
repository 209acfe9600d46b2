#include "scheduler/cost_model.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

constexpr double kForget = 0.98;         // factor by which a pass's weight falls with each later pass
constexpr double kLeast = 1e-7;          // seconds
constexpr double kMostCovariance = 1e6;  // of a term that passes have long said nothing about

}  // namespace

void RateEstimator::note(int prompt_rows, int generated_rows, double seconds) {
  const std::array<double, kTerms> rows = {1, static_cast<double>(prompt_rows), static_cast<double>(generated_rows)};
  std::array<double, kTerms> gain{};
  double scale = kForget;
  double error = seconds;
  for (std::size_t a = 0; a < kTerms; ++a) {
    for (std::size_t b = 0; b < kTerms; ++b) gain[a] += covariance_[a][b] * rows[b];
    scale += gain[a] * rows[a];
    error -= fit_[a] * rows[a];
  }
  ++passes_;
  // Passes slowed down by the machine raise the bound for later passes, not the rates.
  excess_ = 0.95 * excess_ + (error > 0 ? 0.1 * error : 0);
  const double trace = covariance_[0][0] + covariance_[1][1] + covariance_[2][2];
  const double forget = trace < kMostCovariance ? kForget : 1;
  for (std::size_t a = 0; a < kTerms; ++a) fit_[a] += gain[a] / scale * error;
  for (std::size_t a = 0; a < kTerms; ++a)
    for (std::size_t b = a; b < kTerms; ++b)
      covariance_[a][b] = covariance_[b][a] = (covariance_[a][b] - gain[a] * gain[b] / scale) / forget;
}

PassRates RateEstimator::rates() const {
  return {std::max(fit_[0], kLeast), std::max(fit_[1], kLeast), std::max(fit_[2], kLeast)};
}

int prompt_rows_within(double max_itl, const PassRates& rates, double excess, int generated_rows, int most) {
  if (max_itl <= 0 || generated_rows == 0) return most;
  const double left = max_itl - excess - rates.seconds(0, generated_rows);
  const double rows = std::floor(left / rates.prompt_row);
  return static_cast<int>(std::clamp<double>(rows, std::min(kLeastPromptRows, most), most));
}

PreemptionCost preemption_cost(const RecomputeWork& work, const PassRates& rates, int prompt_rows) {
  const double read = rates.seconds(prompt_rows, 0) / prompt_rows;
  const double generate = work.by_range ? read : rates.seconds(0, 1);
  const auto prompt = static_cast<double>(std::max<std::int64_t>(work.prompt - work.cached, 0));
  return {.recompute = prompt * read + static_cast<double>(work.generated) * generate};
}

}  // namespace kvasir
