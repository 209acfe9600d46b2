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

// Products of two elements that were floats are exact, so fusing them with the sum changes nothing.
KVASIR_WIDE_VECTORS void add_products(const double* __restrict query, std::size_t dim, double* __restrict to) {
  for (std::size_t i = 0; i < dim; to += ++i)
    for (std::size_t j = 0; j <= i; ++j) to[j] += query[i] * query[j];
}

}  // namespace

void QueryMoments::begin(const TableLayout& layout) {
  heads_ = layout.heads;
  head_dim_ = layout.head_dim;
  tables_.assign(static_cast<std::size_t>(layout.tables()), Table{0, std::vector<double>(doubles(heads_, head_dim_))});
}

void QueryMoments::add(int table, const QuerySums& sums) {
  Table& all = tables_[static_cast<std::size_t>(table)];
  all.rows += sums.rows;
  double* const to = all.sums.data();
  add_to(sums.sums.data(), sums.sums.size(), to);
  double* const products = to + sums.sums.size();
  if (!sums.products.empty()) return add_to(sums.products.data(), sums.products.size(), products);
  const auto dim = static_cast<std::size_t>(head_dim_);
  for (std::size_t head = 0; head < static_cast<std::size_t>(heads_); ++head)
    add_products(&sums.sums[head * dim], dim, products + head * (dim * (dim + 1) / 2));
}

QuerySums QueryMoments::of(int table) const {
  const Table& own = tables_[static_cast<std::size_t>(table)];
  const std::span<const double> all = own.sums;
  const std::size_t queries = static_cast<std::size_t>(heads_) * static_cast<std::size_t>(head_dim_);
  return {own.rows, heads_, head_dim_, all.first(queries), all.subspan(queries)};
}

QueryMoments::Moments QueryMoments::moments(int table, int head) const {
  const QuerySums sums = of(table);
  const auto dim = static_cast<std::size_t>(head_dim_);
  const auto count = static_cast<double>(std::max<std::int64_t>(sums.rows, 1));
  Moments made{std::vector<double>(dim), std::vector<double>(dim * dim)};
  for (std::size_t i = 0; i < dim; ++i) made.mean[i] = sums.sum(head, static_cast<int>(i)) / count;
  for (std::size_t i = 0; i < dim; ++i)
    for (std::size_t j = 0; j < dim; ++j)
      made.covariance[i * dim + j] =
          sums.product(head, static_cast<int>(i), static_cast<int>(j)) / count - made.mean[i] * made.mean[j];
  return made;
}

std::uint64_t QueryMoments::table_bytes(const TableLayout& layout) {
  return sizeof(Table) + doubles(layout.heads, layout.head_dim) * sizeof(double);
}

void QueryMoments::save(int table, ByteWriter& out) const {
  const Table& own = tables_[static_cast<std::size_t>(table)];
  out.put(own.rows);
  out.put_values(std::span<const double>(own.sums));
}

bool QueryMoments::restore(int table, ByteReader& in) {
  Table& own = tables_[static_cast<std::size_t>(table)];
  return in.get(own.rows) && own.rows >= 0 && in.get_values(std::span(own.sums)) &&
         std::ranges::all_of(own.sums, [](double x) { return std::isfinite(x); });
}

QueryTurn turn_of(const TableLayout& layout, int layer) {
  if (layout.turns != nullptr) return (*layout.turns)[static_cast<std::size_t>(layer)];
  return {.scale = 1 / std::sqrt(static_cast<float>(std::max(layout.head_dim, 1)))};
}

}  // namespace kvasir
