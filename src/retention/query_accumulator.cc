#include "retention/query_accumulator.h"

#include "backend/wide_vectors.h"
#include "base/check.h"

namespace kvasir {
namespace {

// A product of two floats is exact in double, so fusing it with the sum changes nothing.
KVASIR_WIDE_VECTORS void add_products(const float* __restrict query, std::size_t dim, double* __restrict product) {
  for (std::size_t i = 0; i < dim; product += ++i) {
    const double own = query[i];
    for (std::size_t j = 0; j <= i; ++j) product[j] += own * static_cast<double>(query[j]);
  }
}

}  // namespace

void QueryAccumulator::begin(int heads, int head_dim, std::int64_t rows) {
  heads_ = heads;
  head_dim_ = head_dim;
  rows_ = rows;
  sums_ = std::vector<double>(static_cast<std::size_t>(heads) * doubles(head_dim, rows));
}

void QueryAccumulator::add(int head, std::span<const float> query) {
  KVASIR_CHECK(head >= 0 && head < heads_ && std::ssize(query) == head_dim_);
  const auto at = static_cast<std::size_t>(head), dim = static_cast<std::size_t>(head_dim_);
  double* const sum = sums_.data() + at * dim;
  for (std::size_t i = 0; i < dim; ++i) sum[i] += double{query[i]};
  if (rows_ > 1)
    add_products(query.data(), dim, sums_.data() + static_cast<std::size_t>(heads_) * dim + at * triangle(head_dim_));
}

QuerySums QueryAccumulator::of(int first, int count) const {
  KVASIR_CHECK(first >= 0 && count >= 0 && first + count <= heads_);
  const auto from = static_cast<std::size_t>(first), all = static_cast<std::size_t>(count);
  const auto dim = static_cast<std::size_t>(head_dim_);
  const std::span<const double> sums(sums_);
  QuerySums made{rows_, count, head_dim_, sums.subspan(from * dim, all * dim), {}};
  if (rows_ > 1)
    made.products =
        sums.subspan(static_cast<std::size_t>(heads_) * dim + from * triangle(head_dim_), all * triangle(head_dim_));
  return made;
}

}  // namespace kvasir
