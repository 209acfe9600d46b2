// The sums of each table's queries over a text, from which their mean and covariance follow: state of policies with the
// capability SumsQueries.
// Thread-safety: calls for different tables may come from several threads at once.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "retention/capabilities.h"

namespace kvasir {

class QueryMoments {
 public:
  // Sets all sums to zero.
  void begin(const TableLayout& layout);
  // Adds what SumsQueries::read_queries received.
  void add(int table, const QuerySums& sums);

  // The moments of one query head: mean[i] = E[q_i], covariance[i * head_dim + j] = E[q_i q_j] - E[q_i] E[q_j], before
  // rotation and scaling. All are 0 if no row was added.
  struct Moments {
    std::vector<double> mean, covariance;
  };
  Moments moments(int table, int head) const;

  // Returns the bytes of one table's sums, and of the queries that wait to be added.
  static std::uint64_t table_bytes(const TableLayout& layout);
  void save(int table, ByteWriter& out) const;
  // Returns false for bytes that save does not write.
  bool restore(int table, ByteReader& in);

 private:
  struct Table {
    std::int64_t rows = 0;
    std::vector<double> sums;  // the queries of each head, then their products, in the order of QuerySums
    // [kTogether][heads][head_dim]: the newest queries, whose products are not added yet. Reading and writing all
    // products takes longer than the additions, so several queries are added in one pass.
    std::vector<float> waiting;
    std::size_t waiting_rows = 0;
  };
  static constexpr std::size_t kTogether = 8;

  // Adds the products of the queries that wait to `products`: those of a table, or a copy of them.
  void add_waiting(const Table& own, double* products) const;
  std::size_t queries_size() const { return static_cast<std::size_t>(heads_) * static_cast<std::size_t>(head_dim_); }

  int heads_ = 0;
  int head_dim_ = 0;
  std::vector<Table> tables_;
};

// Returns how queries of a layer meet keys: that of the layout, or without one no rotation and a scale of
// 1 / sqrt(head_dim).
QueryTurn turn_of(const TableLayout& layout, int layer);

}  // namespace kvasir
