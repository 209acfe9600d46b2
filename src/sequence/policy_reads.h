// Describes to a batch which tokens of their page tables the rows of a chunk read under a policy, and with what biases:
// what it hides (HidesRanges), leaves unread (LeavesUnread) or weighs (WeighsSlots), and what a selector chooses
// (RanksSegments).
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "retention/policy.h"
#include "sequence/sequence_selector.h"
#include "sequence/slot_biases.h"

namespace kvasir {

class PolicyReads {
 public:
  // `policy` and `shape` must outlive the object. `selector`: null: rows read all that they see.
  PolicyReads(const RetentionPolicy& policy, const KvCacheShape& shape, std::unique_ptr<SequenceSelector> selector);

  const SequenceSelector* selector() const { return selector_.get(); }
  // For tests. REQUIRES: no pass has run.
  void set_selector(std::unique_ptr<SequenceSelector> selector) { selector_ = std::move(selector); }

  // Bytes of the selector, which stay between chunks.
  std::uint64_t bytes() const { return selector_ != nullptr ? selector_->bytes() : 0; }
  // Returns the most bytes until the chunk has ended; `tables`: those that its first pass finds.
  std::uint64_t bytes_for(const KvSequence& tables, const PolicyChunk& chunk) const;

  void begin_chunk(const PolicyChunk& chunk);
  // Describes a chunk of one row that the policy is not told of, and that does not read `unseen`. REQUIRES: no
  // selector.
  void begin_drafting(const PolicyChunk& chunk, IndexRange unseen);
  // Describes rows [first, first + rows) of the chunk, which run next: sets `out`, one for each table, and the
  // sequence's selector. `window`: of the governed layers. Valid until end_pass.
  void describe(const KvSequence& tables, Position window, int first, int rows, BatchSequence* sequence,
                std::span<BatchTable> out);
  void end_pass() { biases_.clear(); }

 private:
  const RetentionPolicy& policy_;
  const LeavesUnread* unread_;  // of the policy; null: rows read all that they see
  const KvCacheShape& shape_;
  std::unique_ptr<SequenceSelector> selector_;
  SlotBiases biases_;
  PolicyChunk chunk_;
  std::vector<IndexRange> read_by_draft_;   // in place of what the policy says; empty: the chunk is no draft
  std::vector<IndexRange> hidden_;          // [chunk rows]
  std::vector<IndexRange> nothing_hidden_;  // [rows of a pass]
  std::vector<IndexRange> reads_;           // of a table, while it is described
};

}  // namespace kvasir
