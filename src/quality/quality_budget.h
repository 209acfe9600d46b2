// The budget of a policy as a number that a promise of quality moves: which option it is, its range, and the policy
// with another one.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "kvasir/quality.h"
#include "kvasir/status.h"
#include "retention/policy.h"
#include "retention/policy_spec.h"

namespace kvasir {

class QualityBudget {
 public:
  // Tells whether a policy with this budget can run at all.
  using Works = std::function<bool(const RetentionPolicy& policy)>;

  // `text`: tokens of the longest text; by default as much is the largest budget, or the most that `works`. Errors:
  // kInvalidArgument, about "policy" for one that has no budget in tokens, about "quality" for a range that it cannot
  // have.
  static Result<QualityBudget> create(const PolicySpec& spec, const QualityOptions& options, std::int64_t text,
                                      const Works& works = {});

  std::string_view option() const { return option_; }  // that holds it
  std::int64_t first() const { return first_; }        // of the spec as it was given
  std::int64_t least() const { return least_; }
  std::int64_t most() const { return most_; }
  std::int64_t unit() const { return unit_; }  // budgets other than first() and most() are multiples of it

  // Returns the policy with another budget, in its initial state. REQUIRES: least() <= budget <= most().
  std::unique_ptr<RetentionPolicy> policy(std::int64_t budget) const;
  // As above, with any budget. Errors: kInvalidArgument where the policy refuses it.
  Result<std::unique_ptr<RetentionPolicy>> try_policy(std::int64_t budget) const;

 private:
  PolicySpec spec_;
  std::size_t part_ = 0;  // of the spec, which has the option
  std::string_view option_;
  std::int64_t first_ = 0;
  std::int64_t least_ = 0;
  std::int64_t most_ = 0;
  std::int64_t unit_ = 1;
};

}  // namespace kvasir
