// Plain values by which retention policies tell page tables which tokens to keep. Thread-safety: values.
#pragma once

#include <cstdint>
#include <vector>

namespace kvasir {

using TokenIndex = std::int64_t;  // place of a token in its text, from 0
using Position = std::int64_t;    // rotary position

struct IndexRange {
  TokenIndex begin = 0;
  TokenIndex end = 0;  // exclusive
  bool empty() const { return end <= begin; }
  std::int64_t size() const { return empty() ? 0 : end - begin; }
  bool operator==(const IndexRange&) const = default;
};

// What one decision of a policy, and so one page table, covers.
enum class PolicyScope { kSequence, kLayer, kHead };

// How the tokens behind a hole move up to close it.
enum class Realign {
  kFrames,  // the origin of their frame changes; no key is touched
  kRotate,  // their keys are rotated by the shift and stored again, as StreamingLLM was published
};

// The changes of a table after a chunk. All tokens named are at or before the chunk's last.
struct KeepPlan {
  struct Move {
    TokenIndex index = 0;
    int run = 0;
  };
  // Ascending and disjoint, none empty. The retained tokens inside are dropped; indices of other tokens are ignored.
  std::vector<IndexRange> drop;
  // Ascending. Retained tokens that move to a run of a higher number, as its newest.
  std::vector<Move> moves;
  // For reports only: for each row of the chunk, the number of tokens held after its insertion and pruning. May be
  // empty if nothing is dropped before the last row.
  std::vector<std::int64_t> held;
  // How the tokens behind the dropped ones move up.
  Realign realign = Realign::kFrames;

  void clear() {
    drop.clear();
    moves.clear();
    held.clear();
    realign = Realign::kFrames;
  }
  bool empty() const { return drop.empty() && moves.empty(); }

  // Adds a range, or extends the last one by it. REQUIRES: it is not empty and lies behind the earlier ranges.
  void add_drop(IndexRange range) {
    if (!drop.empty() && drop.back().end == range.begin) {
      drop.back().end = range.end;
    } else {
      drop.push_back(range);
    }
  }
};

}  // namespace kvasir
