#include "retention/query_accumulator.h"

#include "base/check.h"

namespace kvasir {

void QueryAccumulator::begin(int heads, int head_dim) {
  heads_ = heads;
  head_dim_ = head_dim;
  sums_ = std::vector<double>(static_cast<std::size_t>(heads) * doubles(head_dim));
}

void QueryAccumulator::add(int head, std::span<const float> query) {
  KVASIR_CHECK(head >= 0 && head < heads_ && std::ssize(query) == head_dim_);
  const auto at = static_cast<std::size_t>(head), dim = static_cast<std::size_t>(head_dim_);
  double* sum = sums_.data() + at * dim;
  double* product = sums_.data() + static_cast<std::size_t>(heads_) * dim + at * triangle(head_dim_);
  // A product of two floats is exact in double, so fusing it with the sum changes nothing.
  for (std::size_t i = 0; i < dim; product += ++i) {
    const double own = query[i];
    sum[i] += own;
    for (std::size_t j = 0; j <= i; ++j) product[j] += own * static_cast<double>(query[j]);
  }
}

QuerySums QueryAccumulator::of(int first, int count, std::int64_t rows) const {
  KVASIR_CHECK(first >= 0 && count >= 0 && first + count <= heads_);
  const auto from = static_cast<std::size_t>(first), all = static_cast<std::size_t>(count);
  const auto dim = static_cast<std::size_t>(head_dim_);
  const std::span<const double> sums(sums_);
  return {rows, count, head_dim_, sums.subspan(from * dim, all * dim),
          sums.subspan(static_cast<std::size_t>(heads_) * dim + from * triangle(head_dim_), all * triangle(head_dim_))};
}

}  // namespace kvasir
