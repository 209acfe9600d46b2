// What the scheduler is told of requests beside their sequences: how much they need, on whose quota, and what passes
// cost. Thread-safety: none; as the requests.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/cost_model.h"
#include "engine/memory_plan.h"
#include "engine/schedule.h"
#include "kvasir/engine.h"

namespace kvasir {

// Checks marks, bounds and rows. Errors: kInvalidArgument naming the field.
Status check_scheduler(const SchedulerOptions& options);

ScheduleLimits limits_of(const SchedulerOptions& options);

// A request as its estimate needs it.
struct RequestSize {
  std::int64_t prompt = 0;       // tokens
  std::int64_t max_tokens = -1;  // to generate; -1: no limit
  std::int64_t context = 0;      // trained
  int chunk = 0;                 // of prompts; 0: the policy's own
};

// Returns the bytes of one sample's peak: the arithmetic of `kvasir plan`. Under a policy with a bound that is at most
// what the bound takes, however long the text; under one without, what prompt and max_tokens take, or without
// max_tokens what the context does.
std::uint64_t peak_bytes(const KvCacheShape& shape, const RetentionPolicy& policy, const RequestSize& size);

class Admissions {
 public:
  explicit Admissions(const ScheduleLimits& limits, double max_itl) : limits_(limits), max_itl_(max_itl) {}

  // See Engine::set_quota. A quota of zeros removes it.
  void set_quota(int tenant, const TenantQuota& quota);
  std::span<const ScheduleQuota> quotas() const { return quotas_; }
  int index_of(int tenant) const;  // in quotas(); -1: it has none

  // The limits of a pass in which `generating` rows are not of prompts.
  ScheduleLimits limits(int generating) const;
  const ScheduleLimits& most() const { return limits_; }

  void note_pass(int prompt_rows, int other_rows, double seconds) { rates_.note(prompt_rows, other_rows, seconds); }
  double cost(const RecomputeWork& work) const {
    return preemption_cost(work, rates_.rates(), limits_.prompt_rows).least();
  }
  const RateEstimator& rates() const { return rates_; }

 private:
  ScheduleLimits limits_;
  double max_itl_ = 0;
  RateEstimator rates_;
  std::map<int, int> tenants_;  // index of each
  std::vector<ScheduleQuota> quotas_;
};

}  // namespace kvasir
