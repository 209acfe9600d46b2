// What a page table is told to keep: plain values between those who decide (retention policies) and those who execute.
// Thread-safety: values.
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

// What one decision of a policy, and so one page table, holds for.
enum class PolicyScope { kSequence, kLayer, kHead };

// How the tokens behind a hole move up to close it.
enum class Realign {
  kFrames,  // the origin of their frame changes; no key is touched
  kRotate,  // their keys are rotated by the shift and stored again, as StreamingLLM was published
};

// What a table does after a chunk. All tokens named are at or before the chunk's last.
struct KeepPlan {
  struct Move {
    TokenIndex index = 0;
    int run = 0;
  };
  // Ascending and disjoint, none empty. The retained tokens inside are dropped; others are passed over.
  std::vector<IndexRange> drop;
  // Ascending. Retained tokens that go to the end of another run of a higher number, as its newest.
  std::vector<Move> moves;
  // For reports only: the tokens held once each row of the chunk was inserted and pruned, one number per row. May be
  // left empty where nothing is dropped before the last row.
  std::vector<std::int64_t> held;
  // How what is behind the dropped tokens moves up.
  Realign realign = Realign::kFrames;

  void clear() {
    drop.clear();
    moves.clear();
    held.clear();
    realign = Realign::kFrames;
  }
  bool empty() const { return drop.empty() && moves.empty(); }

  // Adds a range that is not empty and lies behind those added so far; one that begins where the last ends extends it.
  void add_drop(IndexRange range) {
    if (!drop.empty() && drop.back().end == range.begin) {
      drop.back().end = range.end;
    } else {
      drop.push_back(range);
    }
  }
};

}  // namespace kvasir
