// Decides a policy's budget from the distances that were measured: a pure function of these numbers, which depend on
// tokens alone. So the same text gets the same budgets, whatever runs beside it.
//
// With B the bound, M the mean of all n samples so far, R that of the samples since the budget last changed, and
//
//   U = M + sqrt(sum of x^2 over all samples x) / n
//
// (a standard error above M, and a little more: divergences have a long tail, and the promise is about all tokens, of
// which few are samples; unlike the standard error, U grows with each sample):
//
//   U > B       grows, if R > B / 2: otherwise the mean is on its way down
//   U <= B      grows, if R > B over two checks or more, or the newest check is above 2 B
//               shrinks by a fifth, if U < 0.8 B and R < B / 2 over two checks or more
//
// It grows by a half; twofold if R (or U, if that is above B) is more than 2 B, threefold if it is more than 4 B. A
// budget that was too small is not returned to, nor one below it, for 16 checks: so the budget settles.
//
// For the same samples before it, a larger newest sample never gives a smaller budget.
// Thread-safety: a value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvasir/quality.h"

namespace kvasir {

class QualityController {
 public:
  struct Range {
    std::int64_t first = 0;  // least <= first <= most
    std::int64_t least = 0;
    std::int64_t most = 0;
    std::int64_t unit = 1;  // budgets other than these are multiples of it
  };

  QualityController(double bound, const Range& range) : bound_(bound), range_(range), budget_(range.first) {}

  // Takes the samples of one check, in nats. Returns the budget from here on. REQUIRES: at least one; none negative.
  std::int64_t add(std::span<const double> samples);

  std::int64_t budget() const { return budget_; }
  std::int64_t compared() const { return compared_; }  // samples
  std::int64_t checks() const { return checks_; }
  double mean() const { return compared_ > 0 ? sum_ / static_cast<double>(compared_) : 0; }
  double largest_mean() const { return largest_mean_; }  // of the samples of one check
  bool holds() const { return compared_ > 0 && mean() <= bound_; }

 private:
  double upper_mean() const;  // U
  void grow(double excess);
  void shrink();
  void set_budget(std::int64_t budget);

  double bound_;
  Range range_;
  std::int64_t budget_;
  double sum_ = 0;
  double squares_ = 0;
  std::int64_t compared_ = 0;
  std::int64_t checks_ = 0;
  double largest_mean_ = 0;
  // Since the budget last changed:
  double recent_sum_ = 0;
  std::int64_t recent_compared_ = 0;
  std::int64_t recent_checks_ = 0;
  std::int64_t too_small_ = 0;     // the newest budget that was too small; 0: none
  std::int64_t too_small_at_ = 0;  // number of checks when that was seen
};

}  // namespace kvasir
