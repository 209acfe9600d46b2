// Adds up the queries of a chunk (QuerySums, retention/capabilities.h), for both the engine and replay, so that they
// agree bit for bit.
// Thread-safety: add may be called for different heads from several threads at once, and so may of; otherwise none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "retention/capabilities.h"

namespace kvasir {

class QueryAccumulator {
 public:
  // Returns the bytes that begin allocates.
  static std::uint64_t bytes_for(int heads, int head_dim, std::int64_t rows) {
    return static_cast<std::uint64_t>(heads) * doubles(head_dim, rows) * sizeof(double);
  }
  std::uint64_t bytes() const { return sums_.capacity() * sizeof(double); }

  // Makes room for so many heads, with sums of zero over so many rows.
  void begin(int heads, int head_dim, std::int64_t rows);
  // Adds one query to a head's sums. Rows come in order. REQUIRES: query.size() is head_dim.
  void add(int head, std::span<const float> query);
  // Returns the sums of heads [first, first + count). Valid until begin or end.
  QuerySums of(int first, int count) const;
  // Gives the memory back.
  void end() { sums_ = std::vector<double>(); }

 private:
  static constexpr std::uint64_t triangle(int head_dim) {
    return static_cast<std::uint64_t>(head_dim) * (static_cast<std::uint64_t>(head_dim) + 1) / 2;
  }
  // Products are summed over two rows or more.
  static constexpr std::uint64_t doubles(int head_dim, std::int64_t rows) {
    return static_cast<std::uint64_t>(head_dim) + (rows > 1 ? triangle(head_dim) : 0);
  }

  int heads_ = 0;
  int head_dim_ = 0;
  std::int64_t rows_ = 0;
  std::vector<double> sums_;  // [heads][head_dim], then [heads][triangle]
};

}  // namespace kvasir
