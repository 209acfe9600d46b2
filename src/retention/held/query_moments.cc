#include "retention/held/query_moments.h"

#include <algorithm>
#include <cmath>

#include "backend/wide_vectors.h"

namespace kvasir {
namespace {

std::size_t doubles(int heads, int head_dim) {
  const auto dim = static_cast<std::size_t>(head_dim);
  return static_cast<std::size_t>(heads) * (dim + dim * (dim + 1) / 2);
}

KVASIR_WIDE_VECTORS void add_to(const double* __restrict from, std::size_t count, double* __restrict to) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

// Adds the products of kRows queries, one after the other, `step` floats apart, to a lower triangle. Products of two
// floats are exact in double, so fusing them with the sum changes nothing.
template <std::size_t kRows>
[[gnu::always_inline]] inline void add_products_of(const float* __restrict queries, std::size_t step, std::size_t dim,
                                                   double* __restrict to) {
  for (std::size_t i = 0; i < dim; to += ++i) {
    double own[kRows];
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) own[r] = queries[r * step + i];
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = to[j];
#pragma GCC unroll 8
      for (std::size_t r = 0; r < kRows; ++r) sum += own[r] * double{queries[r * step + j]};
      to[j] = sum;
    }
  }
}

constexpr std::size_t kRowsAtOnce = 8;

KVASIR_WIDE_VECTORS void add_in_turn(const float* queries, std::size_t rows, std::size_t step, std::size_t dim,
                                     double* to) {
  std::size_t r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) add_products_of<kRowsAtOnce>(queries + r * step, step, dim, to);
  for (; r < rows; ++r) add_products_of<1>(queries + r * step, step, dim, to);
}

}  // namespace

void QueryMoments::begin(const TableLayout& layout) {
  heads_ = layout.heads;
  head_dim_ = layout.head_dim;
  tables_.assign(static_cast<std::size_t>(layout.tables()), Table{0, std::vector<double>(doubles(heads_, head_dim_)),
                                                                  std::vector<float>(kTogether * queries_size()), 0});
}

void QueryMoments::add_waiting(const Table& own, double* products) const {
  const auto dim = static_cast<std::size_t>(head_dim_);
  for (std::size_t head = 0; head < static_cast<std::size_t>(heads_); ++head)
    add_in_turn(own.waiting.data() + head * dim, own.waiting_rows, queries_size(), dim,
                products + head * (dim * (dim + 1) / 2));
}

void QueryMoments::add(int table, const QuerySums& sums) {
  static_assert(kTogether % kRowsAtOnce == 0);
  Table& all = tables_[static_cast<std::size_t>(table)];
  all.rows += sums.rows;
  add_to(sums.sums.data(), sums.sums.size(), all.sums.data());
  double* const products = all.sums.data() + queries_size();
  if (sums.products.empty()) {  // one query, whose elements were floats
    float* const to = all.waiting.data() + all.waiting_rows++ * queries_size();
    std::ranges::transform(sums.sums, to, [](double x) { return static_cast<float>(x); });
    if (all.waiting_rows < kTogether) return;
  }
  add_waiting(all, products);
  all.waiting_rows = 0;
  if (!sums.products.empty()) add_to(sums.products.data(), sums.products.size(), products);
}

QueryMoments::Moments QueryMoments::moments(int table, int head) const {
  const Table& own = tables_[static_cast<std::size_t>(table)];
  const auto dim = static_cast<std::size_t>(head_dim_), at = static_cast<std::size_t>(head);
  const auto count = static_cast<double>(std::max<std::int64_t>(own.rows, 1));
  Moments made{std::vector<double>(dim), std::vector<double>(dim * dim)};
  for (std::size_t i = 0; i < dim; ++i) made.mean[i] = own.sums[at * dim + i] / count;
  const double* products = own.sums.data() + queries_size() + at * (dim * (dim + 1) / 2);
  for (std::size_t i = 0; i < dim; products += ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = products[j];
      for (std::size_t r = 0; r < own.waiting_rows; ++r) {
        const float* const query = own.waiting.data() + r * queries_size() + at * dim;
        sum += double{query[i]} * double{query[j]};
      }
      made.covariance[i * dim + j] = made.covariance[j * dim + i] = sum / count - made.mean[i] * made.mean[j];
    }
  return made;
}

std::uint64_t QueryMoments::table_bytes(const TableLayout& layout) {
  const auto queries = static_cast<std::size_t>(layout.heads) * static_cast<std::size_t>(layout.head_dim);
  return sizeof(Table) + doubles(layout.heads, layout.head_dim) * sizeof(double) + kTogether * queries * sizeof(float);
}

void QueryMoments::save(int table, ByteWriter& out) const {
  const Table& own = tables_[static_cast<std::size_t>(table)];
  out.put(own.rows);
  std::vector<double> sums = own.sums;
  add_waiting(own, sums.data() + queries_size());
  out.put_values(std::span<const double>(sums));
}

bool QueryMoments::restore(int table, ByteReader& in) {
  Table& own = tables_[static_cast<std::size_t>(table)];
  own.waiting_rows = 0;
  return in.get(own.rows) && own.rows >= 0 && in.get_values(std::span(own.sums)) &&
         std::ranges::all_of(own.sums, [](double x) { return std::isfinite(x); });
}

QueryTurn turn_of(const TableLayout& layout, int layer) {
  if (layout.turns != nullptr) return (*layout.turns)[static_cast<std::size_t>(layer)];
  return {.scale = 1 / std::sqrt(static_cast<float>(std::max(layout.head_dim, 1)))};
}

}  // namespace kvasir
