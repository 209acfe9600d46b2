// What each tenant may hold of an engine's KV cache.
// Thread-safety: ceiling_of() and the checks from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "kvasir/engine.h"
#include "planning/cache_sizing.h"
#include "session/session.h"

namespace kvasir {

class TenantQuotas {
 public:
  // `budget`: the cache's bytes; 0: not known yet. Errors: kInvalidArgument.
  Status set(int tenant, const TenantQuota& quota, std::uint64_t budget);
  const std::map<int, TenantQuota>& all() const { return quotas_; }  // not while set() runs
  std::uint64_t ceiling_of(int tenant) const;                        // bytes; 0: none

  // Checks that a prompt can be read within the ceiling of its tenant. Errors: kResourceExhausted with the arithmetic.
  Status check_ceiling(int tenant, const KvCacheShape& shape, const CacheSize& place, std::int64_t tokens) const;
  // The same of a prompt behind a session. What a loaded session holds counts for nobody.
  Status check_session_ceiling(int tenant, const SessionBase& session, std::int64_t tokens) const;

 private:
  mutable std::mutex mutex_;
  std::map<int, TenantQuota> quotas_;
};

}  // namespace kvasir
