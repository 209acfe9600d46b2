// Plans the memory that a request would take of a cache. See Engine::plan.
// Thread-safety: pure function.
#pragma once

#include "kvasir/plan.h"
#include "planning/cache_sizing.h"

namespace kvasir {

// `place`: the request's policy in a cache of this shape, with the cache's budget. `context`: trained, tokens. Errors:
// kInvalidArgument for figures out of range.
Result<RequestPlan> plan_request(const PlanRequest& request, const KvCacheShape& shape, const CacheSize& place,
                                 std::int64_t context);

}  // namespace kvasir
