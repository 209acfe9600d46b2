#include "quality/quality_budget.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "retention/registry.h"

namespace kvasir {
namespace {

constexpr std::int64_t kMostBudget = std::int64_t{1} << 40;
constexpr std::int64_t kPage = 16;
constexpr std::int64_t kLeast = 64;

Status no_budget(const PolicySpec& spec, std::string_view why) {
  return invalid_argument(
             "kv.quality moves the budget of a policy, and {} of '{}'; name a policy with a budget in tokens, such as "
             "streaming:sinks=4,window=508",
             why, spec.text())
      .about({"policy"});
}

std::int64_t round_up(std::int64_t tokens, std::int64_t unit) {
  return (tokens + unit - 1) / unit * unit;
}

// Returns the largest `low + k * unit`, at most `high`, for which `good` holds. REQUIRES: good(low); where good is
// false it stays so for larger numbers.
template <class Good>
std::int64_t last_good(std::int64_t low, std::int64_t high, std::int64_t unit, const Good& good) {
  if (good(high)) return high;
  std::int64_t most = (high - low) / unit, least = 0;  // good(low + least * unit)
  while (least < most) {
    const std::int64_t middle = least + (most - least + 1) / 2;
    if (good(low + middle * unit)) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return low + least * unit;
}

}  // namespace

Result<std::unique_ptr<RetentionPolicy>> QualityBudget::try_policy(std::int64_t budget) const {
  PolicySpec spec = spec_;
  spec.parts[part_].set(option_, budget);
  return make_policy(spec);
}

std::unique_ptr<RetentionPolicy> QualityBudget::policy(std::int64_t budget) const {
  Result<std::unique_ptr<RetentionPolicy>> policy = try_policy(budget);
  KVASIR_CHECK(policy.ok());
  return std::move(*policy);
}

Result<QualityBudget> QualityBudget::create(const PolicySpec& spec, const QualityOptions& options, std::int64_t text,
                                            const Works& works) {
  QualityBudget result;
  result.spec_ = spec;
  for (std::size_t i = 0; i < spec.parts.size(); ++i) {
    const std::string_view option = size_option(spec.parts[i]);
    if (option.empty()) continue;
    if (!result.option_.empty()) return no_budget(spec, "there are two");
    result.option_ = option;
    result.part_ = i;
  }
  if (result.option_.empty()) return no_budget(spec, "there is none");
  const PolicyOptions& part = spec.parts[result.part_];
  KVASIR_ASSIGN_OR_RETURN(const Budget given, part.get_budget(result.option_, kMostBudget));
  if (given.is_share()) return no_budget(spec, "a share of the text is the budget");
  result.first_ = given.tokens;
  if (part.accepts("n")) {  // sub-caches of one size
    KVASIR_ASSIGN_OR_RETURN(const std::int64_t n, part.get_int("n", 1, kMostBudget));
    result.unit_ = std::lcm(n, kPage);
  } else {
    result.unit_ = kPage;
  }
  const auto good = [&](std::int64_t budget) {
    const Result<std::unique_ptr<RetentionPolicy>> policy = result.try_policy(budget);
    return policy.ok() && (!works || works(**policy));
  };
  if (!good(result.first_))
    return result.try_policy(result.first_).status().ok() ? no_budget(spec, "there is no room for that")
                                                          : result.try_policy(result.first_).status();
  const auto refused = [&](std::string_view option, std::int64_t value) {
    return invalid_argument("quality: {}={} cannot be the {} of '{}', whose own budget is {}={}", option, value,
                            result.option_, spec.text(), result.option_, result.first_)
        .about({"quality"});
  };
  result.most_ = options.most;
  if (options.most == 0) {
    const std::int64_t wanted = round_up(std::max(text, result.first_), result.unit_);
    result.most_ = last_good(result.first_, wanted, result.unit_, good);
  } else if (options.most < result.first_ || !good(options.most)) {
    return refused("most", options.most);
  }
  result.least_ = options.least;
  if (options.least == 0) {
    // Budgets below some number are none of this policy's: its sinks or recent tokens take all.
    std::int64_t low = 1, high = std::min(result.first_, round_up(kLeast, result.unit_));
    if (!good(high)) high = result.first_;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (good(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    result.least_ = std::min(result.first_, std::max(round_up(low, result.unit_), round_up(kLeast, result.unit_)));
  } else if (options.least > result.first_ || !good(options.least)) {
    return refused("least", options.least);
  }
  return result;
}

}  // namespace kvasir
