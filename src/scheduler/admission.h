// The scheduler's data about requests besides their sequences: how much they need, on whose quota, and what passes
// cost. Thread-safety: none; as the requests.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "kvasir/engine.h"
#include "planning/memory_plan.h"
#include "scheduler/cost_model.h"
#include "scheduler/schedule.h"

namespace kvasir {

// Checks marks, bounds and rows. Errors: kInvalidArgument naming the field.
Status check_scheduler(const SchedulerOptions& options);

ScheduleLimits limits_of(const SchedulerOptions& options);

// The figures of a request from which its peak is estimated.
struct RequestSize {
  std::int64_t prompt = 0;       // tokens
  std::int64_t max_tokens = -1;  // to generate; -1: no limit
  std::int64_t context = 0;      // trained
  int chunk = 0;                 // of prompts; 0: the policy's own
};

// Returns whether max_tokens adds no limit to the trained context's.
inline bool is_unlimited(const RequestSize& size) {
  return size.max_tokens < 0 || size.max_tokens >= size.context - size.prompt;
}

// Returns the bytes of one sample's peak, by the arithmetic of `kvasir plan`: with a bound at most what the bound
// takes, however long the text; without one, what prompt and max_tokens take, or without max_tokens what the context
// does.
std::uint64_t peak_bytes(const KvCacheShape& shape, const RetentionPolicy& policy, const RequestSize& size);

class Admissions {
 public:
  explicit Admissions(const ScheduleLimits& limits, double max_itl) : limits_(limits), max_itl_(max_itl) {}

  // See Engine::set_quota. A quota of zeros removes it, and invalidates indices that index_of returned.
  void set_quota(int tenant, const TenantQuota& quota);
  std::span<const ScheduleQuota> quotas() const { return quotas_; }
  int index_of(int tenant) const;  // in quotas(); -1: no quota

  // Returns the limits of a pass with `generating` rows that are not of prompts.
  ScheduleLimits limits(int generating) const;
  const ScheduleLimits& most() const { return limits_; }
  // Returns what counts of the peak of a request's sample before it starts. A text without a limit may end at any
  // token, so its peak says little: under kUse it counts as at most one share of ScheduleLimits::side_by_side. Bytes
  // beyond that come from requests that rank behind it. `capacity`: of the cache.
  std::uint64_t counted(std::uint64_t peak, const RequestSize& size, std::uint64_t capacity) const;

  void note_pass(int prompt_rows, int other_rows, double seconds) { rates_.note(prompt_rows, other_rows, seconds); }
  PreemptionCost cost(const RecomputeWork& work) const {
    return preemption_cost(work, rates_.rates(), limits_.prompt_rows);
  }
  const RateEstimator& rates() const { return rates_; }
  // Returns the expected seconds of a pass, by recent passes; max_itl bounds it.
  double expected_seconds(int prompt_rows, int other_rows) const {
    return rates_.rates().seconds(prompt_rows, other_rows) + rates_.excess();
  }

 private:
  void remove_quota(int tenant);

  ScheduleLimits limits_;
  double max_itl_ = 0;
  RateEstimator rates_;
  std::map<int, int> tenants_;  // index of each
  std::vector<ScheduleQuota> quotas_;
};

}  // namespace kvasir
