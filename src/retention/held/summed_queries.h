// The base of policies that decide by the keys and values held, and by the mean and covariance of the text's queries:
// expected, matching. Queries of the sinks do not count.
// Thread-safety: as HeldScoredPolicy's.
#pragma once

#include <algorithm>

#include "retention/held/held_scored.h"
#include "retention/held/query_moments.h"

namespace kvasir {

class SummedQueriesPolicy : public HeldScoredPolicy, public SumsQueries {
 public:
  void begin(const TableLayout& layout) override {
    HeldScoredPolicy::begin(layout);
    queries_.begin(layout);
  }
  // The queries of a cached prefix are not shown.
  std::int64_t exact_prefix(std::int64_t n) const override {
    return std::min(HeldScoredPolicy::exact_prefix(n), rule().sinks);
  }
  bool wants_queries(const PolicyChunk& chunk, int row) const override { return chunk.first + row >= rule().sinks; }
  void read_queries(const PolicyChunk&, int table, const QuerySums& sums) override { queries_.add(table, sums); }

 protected:
  using HeldScoredPolicy::HeldScoredPolicy;

  Capabilities capabilities() const override { return HeldScoredPolicy::capabilities().with<SumsQueries>(this); }
  std::uint64_t table_state_bytes(const TableLayout& layout) const override {
    return QueryMoments::table_bytes(layout);
  }
  void save_table(int table, ByteWriter& out) const override { queries_.save(table, out); }
  bool restore_table(int table, ByteReader& in) override { return queries_.restore(table, in); }

  const QueryMoments& queries() const { return queries_; }

 private:
  QueryMoments queries_;
};

}  // namespace kvasir
