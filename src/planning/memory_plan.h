// Plans how much memory a policy needs, exactly, before anything runs: by the cache's own bookkeeping without pages.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "kv/kv_cache.h"
#include "kvasir/status.h"
#include "retention/policy.h"

namespace kvasir {

struct MemoryRequest {
  std::int64_t tokens = 0;  // per sequence
  std::int64_t prompt = 0;  // part of `tokens` read in chunks; the others come one at a time
  int chunk = 0;            // 0: the policy's own
  int sequences = 1;        // independent, in parallel
  // Passes may end anywhere within a chunk, as they do if requests share them. Encoded pages are then planned for the
  // worst division, since each pass keeps the open pages that it seals until it ends.
  bool divided = false;
};

struct KvMemory {
  bool exact = true;             // false: an upper bound, as it depends on the text or on how chunks are divided
  std::uint64_t pages = 0;       // at the peak; only encoded pages if the codec encodes
  std::uint64_t page_bytes = 0;  // keys and values of one page
  std::uint64_t open_pages = 0;  // at the peak: 16-bit pages that are not encoded yet
  std::uint64_t open_page_bytes = 0;
  // A group of layers with a window of its own. The fields above are those of the governed group.
  struct Window {
    std::uint64_t pages = 0;
    std::uint64_t page_bytes = 0;
    std::uint64_t open_pages = 0;
    std::uint64_t open_page_bytes = 0;
    std::int64_t entries_max = 0;
  };
  std::vector<Window> windows;      // [window groups]
  std::uint64_t state_bytes = 0;    // of layers that hold states
  std::uint64_t table_bytes = 0;    // bookkeeping at the peak, per-page bookkeeping included
  std::uint64_t policy_bytes = 0;   // at most: state of policies and selectors, and what repeats a text (RepeatsText)
  std::uint64_t demoted_bytes = 0;  // dropped tokens that sequences keep in memory (offload/demotion.h), at most
  // Offloaded heads (offload/follower_heads.h), at most: bytes in memory beside their tables; the file's bytes;
  // buffers, which are not charged to the KV budget.
  std::uint64_t offload_bytes = 0;
  std::uint64_t offload_file_bytes = 0;
  std::uint64_t offload_buffer_bytes = 0;
  // pages * page_bytes + open_pages * open_page_bytes, of all groups, + state_bytes + table_bytes + policy_bytes +
  // demoted_bytes + offload_bytes: the least KV budget that suffices
  std::uint64_t bytes = 0;
  // Descriptions of the page tables for a pass, at most; not charged to the KV budget.
  std::uint64_t batch_bytes = 0;
  std::int64_t tokens_seen_max = 0;  // most tokens a forward pass sees
  int frames_max = 1;                // most frames of a page table
  int chunk_frames_max = 1;          // as above, in a chunk of more than Sequence::kFewRows rows
  std::int64_t entries_max = 0;      // most entries of a page table, in all its frames
};

// Returns the least bytes that the pages of `tokens` retained tokens take; a sliding window may hide all but its own
// tokens. Costs nothing to compute.
std::uint64_t least_kv_bytes(const KvCacheShape& shape, std::int64_t tokens);
// As above, under a policy, which may offload some heads' tokens.
std::uint64_t least_kv_bytes(const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t tokens);

// Returns whether sequences under the policy hold every token of their text, in place, until they end.
bool keeps_all(const RetentionPolicy& policy, const KvCacheShape& shape);
// Returns the least bytes of `tokens` tokens that forks of a sequence share until they end; 0 unless keeps_all.
std::uint64_t shared_bytes(const RetentionPolicy& policy, const KvCacheShape& shape, std::int64_t tokens);

// Most tokens of one sequence that are planned: the bookkeeping of more would take minutes.
inline constexpr std::int64_t kMostPlannedTokens = std::int64_t{1} << 24;

// Returns the peak of `request.sequences` sequences under a policy in its initial state. REQUIRES: tokens, or the
// policy's bound if less, are at most kMostPlannedTokens; check least_kv_bytes against the memory first.
KvMemory plan_kv_memory(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request);

// Returns the most frames of a page table, averaged over the rows of a pass and rounded up: a few rows of each sequence
// may have the most there can be, its other rows those of a long chunk. REQUIRES: rows > 0.
int mean_frames(const KvMemory& memory, int rows, int sequences);

// Returns the request for a backend's workspace: a pass of `rows` rows together, of `sequences` sequences of plan
// `memory`. REQUIRES: rows > 0.
Backend::WorkspaceRequest plan_workspace(const KvCacheShape& shape, const RetentionPolicy& policy,
                                         const KvMemory& memory, int rows, int sequences);

}  // namespace kvasir
