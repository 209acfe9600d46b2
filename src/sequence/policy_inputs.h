// What a policy is shown of a chunk beside attention: sums of its queries, and the keys and values of its tokens
// (SumsQueries and ReadsKv, retention/capabilities.h). Nothing is allocated between chunks.
//
// Thread-safety: none, but for add (QueryAccumulator).
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_cache.h"
#include "retention/policy.h"
#include "retention/query_accumulator.h"

namespace kvasir {

// The tables that a policy of this scope has in a cache of this shape.
TableLayout table_layout(const KvCacheShape& shape, PolicyScope scope);

class PolicyInputs {
 public:
  // The policy outlives the object.
  explicit PolicyInputs(RetentionPolicy* policy) : kv_(policy->as<ReadsKv>()), queries_(policy->as<SumsQueries>()) {}

  // The most bytes that a chunk of up to `rows` rows takes, from begin to finish.
  static std::uint64_t most_bytes(const RetentionPolicy& policy, const KvCacheShape& shape, int rows);
  // The same of one chunk.
  std::uint64_t bytes_for(const KvCacheShape& shape, PolicyScope scope, const PolicyChunk& chunk) const;

  // Whether the policy wants the queries of any of the chunk's rows [first, first + rows), or of a row.
  bool wants_queries(const PolicyChunk& chunk, int first, int rows) const;
  bool wants_queries(const PolicyChunk& chunk, int row) const {
    return queries_ != nullptr && queries_->wants_queries(chunk, row);
  }

  // Before the chunk's first pass.
  void begin(const KvCacheShape& shape, const PolicyChunk& chunk);
  // Adds the query of a wanted row; `head`: layer * query heads + query head.
  void add(int head, std::span<const float> query) { sums_.add(head, query); }
  // All rows have run: shows the policy, then `other` if it is not null, what they want of each governed table.
  void finish(const KvCacheShape& shape, const PolicyChunk& chunk, const KvSequence& tables, const PageStore& store,
              ReadsKv* other);

 private:
  ReadsKv* kv_;           // null: the policy reads neither keys nor values
  SumsQueries* queries_;  // null: it does not look at queries
  QueryAccumulator sums_;
};

}  // namespace kvasir
