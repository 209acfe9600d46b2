// How much memory a policy needs, exactly, before anything runs: the cache's own bookkeeping, run without pages.
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
  std::int64_t tokens = 0;  // of a sequence in all
  std::int64_t prompt = 0;  // of these, read in chunks; the others come one at a time
  int chunk = 0;            // 0: the policy's own
  int sequences = 1;        // independent ones, side by side
  // Passes may end anywhere within a chunk, as they do where requests share them. Encoded pages then take what the
  // worst way to divide the chunks takes: each pass keeps the open pages of what it seals until it ends.
  bool divided = false;
};

struct KvMemory {
  bool exact = true;             // otherwise: at most, as it depends on the text or on how chunks are divided
  std::uint64_t pages = 0;       // at the peak; where they are encoded, those that are
  std::uint64_t page_bytes = 0;  // keys and values of one page
  std::uint64_t open_pages = 0;  // at the peak: in 16 bits, where others are encoded
  std::uint64_t open_page_bytes = 0;
  // The same of a group of layers that keep a window of their own. The fields above are those of the governed group.
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
  std::uint64_t policy_bytes = 0;   // state of the policies and selectors, at most
  std::uint64_t demoted_bytes = 0;  // of what the policies drop and the sequences keep (offload/demotion.h), at most
  // Where heads are offloaded (offload/follower_heads.h), at most: what is in memory of them beside their tables; the
  // file's bytes; buffers, which are not charged to the KV budget.
  std::uint64_t offload_bytes = 0;
  std::uint64_t offload_file_bytes = 0;
  std::uint64_t offload_buffer_bytes = 0;
  // pages * page_bytes + open_pages * open_page_bytes, of all groups, + state_bytes + table_bytes + policy_bytes +
  // demoted_bytes + offload_bytes: the least KV budget that suffices
  std::uint64_t bytes = 0;
  // Not charged to the KV budget: descriptions of the page tables for a pass, at most.
  std::uint64_t batch_bytes = 0;
  std::int64_t tokens_seen_max = 0;  // most tokens a forward pass sees
  int frames_max = 1;                // most frames of a page table
  int chunk_frames_max = 1;          // the same in a chunk of more than Sequence::kFewRows rows
  std::int64_t entries_max = 0;      // most entries of a page table, in all its frames
};

// What the pages of `tokens` retained tokens take at the very least, where a sliding window may hide all but its own;
// costs nothing to compute. Forks may share all of it.
std::uint64_t least_kv_bytes(const KvCacheShape& shape, std::int64_t tokens);
// The same under a policy, which may offload some heads' tokens.
std::uint64_t least_kv_bytes(const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t tokens);

// Whether sequences under the policy hold every token of their text, in place, until they end.
bool keeps_all(const RetentionPolicy& policy, const KvCacheShape& shape);

// More tokens than this in one sequence are not planned: their bookkeeping alone would take minutes.
inline constexpr std::int64_t kMostPlannedTokens = std::int64_t{1} << 24;

// The peak of `request.sequences` sequences under a policy as it stands at its start. REQUIRES: tokens, or the
// policy's bound if it is less, of at most kMostPlannedTokens; check least_kv_bytes against what there is first.
KvMemory plan_kv_memory(const KvCacheShape& shape, const RetentionPolicy& policy, const MemoryRequest& request);

// Returns how many frames a page table has at most, averaged over the rows of a pass and rounded up: a few rows of each
// sequence may have as many as there can be, its other rows as many as a long chunk has. REQUIRES: rows > 0.
int mean_frames(const KvMemory& memory, int rows, int sequences);

// What a backend is asked for the workspace of `sequences` sequences of the plan `memory`, of which a pass runs `rows`
// rows together. REQUIRES: rows > 0.
Backend::WorkspaceRequest plan_workspace(const KvCacheShape& shape, const RetentionPolicy& policy,
                                         const KvMemory& memory, int rows, int sequences);

}  // namespace kvasir
