// Finds the moment when the cache of a sequence takes most, by running its page tables without pages.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_cache.h"
#include "planning/memory_plan.h"
#include "retention/policy.h"

namespace kvasir {

struct MemoryPeak {
  std::uint64_t columns = 0;
  std::int64_t seen = 0;  // most tokens seen by one forward pass
  // Encoded columns and sets of open pages when these take most bytes. Without encoding all columns count as sealed.
  std::uint64_t sealed = 0;
  std::uint64_t open = 0;
  std::uint64_t columns_then = 0;  // columns of the table at that moment
  std::uint64_t least = 0;  // least bytes of a lane's pages at the peak, over all divisions of chunks into passes
};

// Returns the bytes of a lane's pages.
std::uint64_t bytes_of_pages(const KvCacheShape& shape, std::uint64_t sealed, std::uint64_t open);

// Returns the peak of one group's tables. REQUIRES: request.chunk > 0.
MemoryPeak find_peak(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request);

// The columns of all groups, and the bytes of their arrays, when they take most bytes together. For policies whose
// columns depend only on the number of tokens, with pages that are not encoded.
struct JointPeak {
  std::uint64_t governed = 0;
  std::vector<std::uint64_t> windows;  // [window groups]
  std::uint64_t bytes = 0;             // per sequence: pages, their bookkeeping, arrays
  std::uint64_t arrays = 0;
};

JointPeak find_joint_peak(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request);

}  // namespace kvasir
