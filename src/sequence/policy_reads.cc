#include "sequence/policy_reads.h"

#include <utility>

#include "kv/describe_table.h"

namespace kvasir {

PolicyReads::PolicyReads(const RetentionPolicy& policy, const KvCacheShape& shape,
                         std::unique_ptr<SequenceSelector> selector)
    : policy_(policy),
      unread_(policy.as<LeavesUnread>()),
      shape_(shape),
      selector_(std::move(selector)),
      biases_(policy) {}

std::uint64_t PolicyReads::bytes_for(const KvSequence& tables, const PolicyChunk& chunk) const {
  return biases_.bytes_for(shape_, tables, chunk.rows) + (selector_ != nullptr ? selector_->bytes_for(chunk.end()) : 0);
}

void PolicyReads::begin_chunk(const PolicyChunk& chunk) {
  chunk_ = chunk;
  read_by_draft_.clear();
  hidden_.assign(static_cast<std::size_t>(chunk.rows), {});
  find_hidden(policy_, chunk, hidden_);
  if (selector_ != nullptr) selector_->reserve(chunk.end());
}

void PolicyReads::begin_drafting(const PolicyChunk& chunk, IndexRange unseen) {
  chunk_ = chunk;
  hidden_.assign(1, {});
  read_by_draft_ = {{0, unseen.begin}, {unseen.end, chunk.end()}};
}

void PolicyReads::describe(const KvSequence& tables, Position window, int first, int rows, BatchSequence* sequence,
                           std::span<BatchTable> out) {
  if (selector_ != nullptr && selector_->begin_pass(chunk_, first, rows)) sequence->selector = selector_.get();
  const auto governed = static_cast<std::size_t>(tables.governed_tables());
  const auto hidden = std::span(hidden_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows));
  for (std::size_t t = 0; t < governed; ++t) {
    const int table = static_cast<int>(t);
    reads_ = read_by_draft_;
    const bool selects = !reads_.empty() || (unread_ != nullptr && unread_->reads(chunk_, table, reads_));
    describe_table(tables.table(table), hidden, window, &out[t], selects ? &reads_ : nullptr);
    biases_.describe(tables, table, chunk_.first, &out[t]);
  }
  // The policy hides nothing from layers that keep a window of their own.
  nothing_hidden_.assign(hidden.size(), {});
  for (std::size_t w = 0; w < shape_.windows.size(); ++w)
    describe_table(tables.table(static_cast<int>(governed + w)), nothing_hidden_, shape_.windows[w].window,
                   &out[governed + w]);
}

}  // namespace kvasir
