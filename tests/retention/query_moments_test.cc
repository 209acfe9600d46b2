// QueryMoments against plain sums in the order of the text, bit for bit.
#include "retention/held/query_moments.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/splitmix.h"

namespace kvasir {
namespace {

constexpr int kHeads = 3;
constexpr int kDim = 19;
constexpr std::size_t kTriangle = kDim * (kDim + 1) / 2;
const TableLayout kLayout{.layers = 1, .per_layer = 2, .heads = kHeads, .head_dim = kDim};
const std::size_t kChunks[] = {1, 1, 1, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 40, 1, 1, 1, 1, 1, 1, 1, 1, 1};  // rows

// Sums of queries and of their products, one after the other.
struct PlainSums {
  std::vector<double> sums = std::vector<double>(kHeads * kDim);
  std::vector<double> products = std::vector<double>(kHeads * kTriangle);

  void add(std::span<const float> query) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < query.size(); ++i) sums[i] += double{query[i]};
    for (std::size_t head = 0; head < kHeads; ++head)
      for (std::size_t i = 0; i < kDim; ++i)
        for (std::size_t j = 0; j <= i; ++j)
          products[at++] += double{query[head * kDim + i]} * double{query[head * kDim + j]};
  }
  void add(const PlainSums& other) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += other.sums[i];
    for (std::size_t i = 0; i < products.size(); ++i) products[i] += other.products[i];
  }
};

void expect_moments(const QueryMoments& moments, int table, const PlainSums& all, std::size_t rows) {
  const auto count = static_cast<double>(rows);
  for (int head = 0; head < kHeads; ++head) {
    const auto [mean, covariance] = moments.moments(table, head);
    const double* product = &all.products[static_cast<std::size_t>(head) * kTriangle];
    for (std::size_t i = 0; i < kDim; ++i) {
      EXPECT_EQ(mean[i], all.sums[static_cast<std::size_t>(head) * kDim + i] / count);
      for (std::size_t j = 0; j <= i; ++j, ++product) {
        EXPECT_EQ(covariance[i * kDim + j], *product / count - mean[i] * mean[j]);
        EXPECT_EQ(covariance[j * kDim + i], covariance[i * kDim + j]);
      }
    }
  }
}

// The moments are checked at every length of the text, of the object itself and of one that was restored from it one
// chunk before. Table 0 receives nothing.
TEST(QueryMoments, ArePlainSums) {
  QueryMoments moments, restored;
  moments.begin(kLayout);
  SplitMix draws(7);
  PlainSums all;
  std::size_t rows = 0;
  for (const std::size_t count : kChunks) {
    PlainSums chunk;
    for (std::size_t row = 0; row < count; ++row) {
      std::vector<float> query(kHeads * kDim);
      for (float& x : query) x = static_cast<float>(4 * draws.unit() - 2);
      chunk.add(query);
    }
    all.add(chunk);
    rows += count;
    const QuerySums sums{static_cast<std::int64_t>(count), kHeads, kDim, chunk.sums,
                         count > 1 ? std::span<const double>(chunk.products) : std::span<const double>()};
    moments.add(1, sums);
    if (rows > count) restored.add(1, sums);
    expect_moments(moments, 1, all, rows);
    expect_moments(moments, 0, {}, 1);
    if (rows > count) expect_moments(restored, 1, all, rows);

    std::vector<std::byte> bytes;
    ByteWriter out(&bytes);
    moments.save(1, out);
    EXPECT_EQ(bytes.size(), sizeof rows + (all.sums.size() + all.products.size()) * sizeof(double));
    restored = {};
    restored.begin(kLayout);
    ByteReader in(bytes);
    ASSERT_TRUE(restored.restore(1, in));
  }
}

}  // namespace
}  // namespace kvasir
