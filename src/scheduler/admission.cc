#include "scheduler/admission.h"

#include <algorithm>

#include "base/status.h"
#include "sequence/sequence.h"

namespace kvasir {

Status check_scheduler(const SchedulerOptions& options) {
  if (!(options.stop_mark > 0 && options.stop_mark <= 1))
    return invalid_argument("stop_mark={} is outside (0, 1]", options.stop_mark).about({"stop_mark"});
  if (!(options.preempt_mark >= options.stop_mark && options.preempt_mark <= 1))
    return invalid_argument("preempt_mark={} is outside [{}, 1], of which the lower end is the stop mark",
                            options.preempt_mark, options.stop_mark)
        .about({"preempt_mark", "stop_mark"});
  if (!(options.max_itl >= 0 && options.max_itl <= 3600))
    return invalid_argument("max_itl={} is outside 0 to 3600 seconds", options.max_itl).about({"max_itl"});
  if (options.max_running < 1)
    return invalid_argument("max_running={} is less than 1", options.max_running).about({"max_running"});
  if (options.side_by_side < 1)
    return invalid_argument("side_by_side={} is less than 1", options.side_by_side).about({"side_by_side"});
  if (options.prompt_rows < 1 || options.prompt_rows > 4096)
    return invalid_argument("prompt_rows={} is outside 1 to 4096", options.prompt_rows).about({"prompt_rows"});
  return {};
}

ScheduleLimits limits_of(const SchedulerOptions& options) {
  ScheduleLimits limits;
  limits.prompt_rows = options.prompt_rows;
  limits.running = options.max_running;
  limits.stop_mark = options.stop_mark;
  limits.preempt_mark = options.preempt_mark;
  limits.admission = options.admission;
  limits.side_by_side = options.side_by_side;
  return limits;
}

std::uint64_t peak_bytes(const KvCacheShape& shape, const RetentionPolicy& policy, const RequestSize& size) {
  std::int64_t tokens = kMostPlannedTokens;
  if (size.max_tokens >= 0) tokens = size.prompt + std::min(size.max_tokens, kMostPlannedTokens);
  // Beyond the context, a bounded policy reaches no higher peak, and an unbounded one cannot go.
  if (policy.bound()) {
    const std::int64_t bound = *policy.bound() + prompt_chunk(policy, size.chunk) + shape.widest_window();
    tokens = std::min(tokens, std::max(size.prompt, 4 * bound));
  } else {
    tokens = std::min(tokens, std::max(size.context, size.prompt));
  }
  tokens = std::min(tokens, kMostPlannedTokens);
  return plan_kv_memory(shape, policy, {tokens, std::min(size.prompt, tokens), size.chunk, 1, true}).bytes;
}

void Admissions::set_quota(int tenant, const TenantQuota& quota) {
  if (quota.floor == 0 && quota.ceiling == 0) return remove_quota(tenant);
  const auto [known, fresh] = tenants_.try_emplace(tenant, static_cast<int>(quotas_.size()));
  if (fresh) quotas_.emplace_back();
  quotas_[static_cast<std::size_t>(known->second)] = {quota.floor, quota.ceiling};
}

void Admissions::remove_quota(int tenant) {
  const auto known = tenants_.find(tenant);
  if (known == tenants_.end()) return;
  const int index = known->second;
  tenants_.erase(known);
  quotas_.erase(quotas_.begin() + index);
  for (auto& [other, place] : tenants_) place -= place > index ? 1 : 0;
}

std::uint64_t Admissions::counted(std::uint64_t peak, const RequestSize& size, std::uint64_t capacity) const {
  if (limits_.admission != Admission::kUse || limits_.stop_mark > 1 || !is_unlimited(size)) return peak;
  const double share = static_cast<double>(capacity) * limits_.stop_mark / limits_.side_by_side;
  return std::min(peak, static_cast<std::uint64_t>(share));
}

int Admissions::index_of(int tenant) const {
  const auto known = tenants_.find(tenant);
  return known == tenants_.end() ? -1 : known->second;
}

ScheduleLimits Admissions::limits(int generating) const {
  ScheduleLimits limits = limits_;
  limits.prompt_rows = prompt_rows_within(max_itl_, rates_.rates(), rates_.excess(), generating, limits_.prompt_rows);
  return limits;
}

}  // namespace kvasir
