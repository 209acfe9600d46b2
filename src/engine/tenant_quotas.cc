#include "engine/tenant_quotas.h"

#include <algorithm>

#include "base/status.h"

namespace kvasir {

Status TenantQuotas::set(int tenant, const TenantQuota& quota, std::uint64_t budget) {
  if (tenant < 0 || (quota.ceiling > 0 && quota.ceiling < quota.floor))
    return invalid_argument("tenant {} cannot have a floor of {} and a ceiling of {}", tenant, quota.floor,
                            quota.ceiling)
        .about({"tenant"});
  const std::lock_guard lock(mutex_);
  std::uint64_t left = budget;
  for (const auto& [other, theirs] : quotas_)
    if (other != tenant) left -= std::min(left, theirs.floor);
  if (budget > 0 && quota.floor > left)
    return invalid_argument(
               "tenant {} cannot have a floor of {} bytes: the cache has {}, of which the floors of other tenants "
               "leave {}",
               tenant, quota.floor, budget, left)
        .about({"tenant"});
  quotas_[tenant] = quota;
  return {};
}

std::uint64_t TenantQuotas::ceiling_of(int tenant) const {
  const std::lock_guard lock(mutex_);
  const auto quota = quotas_.find(tenant);
  return quota == quotas_.end() ? 0 : quota->second.ceiling;
}

Status TenantQuotas::check_ceiling(int tenant, const KvCacheShape& shape, const CacheSize& place,
                                   std::int64_t tokens) const {
  const std::uint64_t ceiling = ceiling_of(tenant);
  if (ceiling == 0) return {};
  const std::uint64_t needed = least_prompt_bytes(shape, *place.policy, tokens, place.chunk);
  if (needed <= ceiling) return {};
  return exhausted(
             "the prompt has {} tokens, for which policy '{}' needs {} bytes of KV memory, but its tenant may hold "
             "{} in all; raise the ceiling, or choose a policy that forgets more",
             tokens, place.policy->traits().spec, needed, ceiling)
      .about({"tenant", "policy"});
}

Status TenantQuotas::check_session_ceiling(int tenant, const SessionBase& session, std::int64_t tokens) const {
  const std::uint64_t ceiling = ceiling_of(tenant);
  if (ceiling == 0 || !session.stored()) return {};
  const Sequence& sequence = *session.held().sequence;
  std::uint64_t needed = sequence.bytes();
  if (!sequence.policy().bound() && !sequence.policy().traits().compacts)
    needed =
        std::max(needed, least_kv_bytes(sequence.shape(), sequence.policy(), sequence.tables().shortest() + tokens));
  if (needed <= ceiling) return {};
  return exhausted(
             "the session and the prompt's {} tokens need {} bytes of KV memory, but their tenant may hold {} in "
             "all; raise the ceiling, or begin a session under a policy that forgets",
             tokens, needed, ceiling)
      .about({"tenant", "session"});
}

}  // namespace kvasir
