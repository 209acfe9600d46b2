// The reduction of softmax weights to masses: the sums are those of the contract, bit for bit.
#include "backend/attention_mass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace kvasir {
namespace {

std::vector<std::vector<float>> random_weights(int heads, int n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<float>> all(static_cast<std::size_t>(heads), std::vector<float>(static_cast<std::size_t>(n)));
  for (auto& weights : all)
    for (float& weight : weights) weight = static_cast<float>(random() >> 40) * 0x1p-24F;
  return all;
}

std::vector<double> reduced(const std::vector<std::vector<float>>& weights, MassReduction reduction) {
  std::vector<const float*> heads;
  for (const auto& head : weights) heads.push_back(head.data());
  std::vector<double> mass(weights[0].size(), -1.0);
  reduce_mass(heads, static_cast<int>(mass.size()), reduction, mass);
  return mass;
}

// The contract once more, from its text.
double sum_of(const std::vector<float>& weights) {
  double lanes[16] = {};
  for (std::size_t i = 0; i < weights.size(); ++i) lanes[i % 16] += static_cast<double>(weights[i]);
  const auto pair = [&](int k, int w) { return lanes[k] + lanes[k + w]; };
  for (int w = 8; w > 0; w /= 2) {
    double next[8];
    for (int k = 0; k < w; ++k) next[k] = pair(k, w);
    std::copy(next, next + w, lanes);
  }
  return lanes[0];
}

TEST(AttentionMass, IsTheContractBitForBit) {
  for (const int heads : {1, 2, 3, 7, 8}) {
    for (const int n : {1, 2, 15, 16, 17, 31, 32, 33, 1000}) {
      const auto weights = random_weights(heads, n, static_cast<std::uint64_t>(heads * 2000 + n));
      const auto sum = reduced(weights, MassReduction::kSum);
      const auto mean = reduced(weights, MassReduction::kMean);
      const auto most = reduced(weights, MassReduction::kMax);
      const auto middle = reduced(weights, MassReduction::kMedian);
      std::vector<double> scales;
      for (const auto& head : weights) scales.push_back(1.0 / sum_of(head));
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        std::vector<double> values;
        double total = 0;
        for (std::size_t h = 0; h < weights.size(); ++h) {
          values.push_back(static_cast<double>(weights[h][i]) * scales[h]);
          total += values.back();
        }
        EXPECT_EQ(sum[i], total);
        EXPECT_EQ(mean[i], total * (1.0 / heads));
        std::sort(values.begin(), values.end());
        EXPECT_EQ(most[i], values.back());
        const std::size_t half = values.size() / 2;
        EXPECT_EQ(middle[i], values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) * 0.5);
      }
    }
  }
}

TEST(AttentionMass, NormalisesEachHead) {
  const std::vector<std::vector<float>> weights = {{1, 3, 0, 0}, {0, 0, 5, 5}};
  EXPECT_EQ(reduced(weights, MassReduction::kSum), (std::vector<double>{0.25, 0.75, 0.5, 0.5}));
  EXPECT_EQ(reduced(weights, MassReduction::kMean), (std::vector<double>{0.125, 0.375, 0.25, 0.25}));
  EXPECT_EQ(reduced(weights, MassReduction::kMax), (std::vector<double>{0.25, 0.75, 0.5, 0.5}));
  EXPECT_EQ(reduced(weights, MassReduction::kMedian), (std::vector<double>{0.125, 0.375, 0.25, 0.25}));
}

TEST(AttentionMass, AHeadWithoutWeightCountsAsZeros) {
  const std::vector<std::vector<float>> weights = {{0, 0}, {1, 3}};
  EXPECT_EQ(reduced(weights, MassReduction::kSum), (std::vector<double>{0.25, 0.75}));
  EXPECT_EQ(reduced({{0, 0}}, MassReduction::kMedian), (std::vector<double>{0, 0}));
}

TEST(AttentionMass, WhatIsNotANumberShows) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto reduction : {MassReduction::kSum, MassReduction::kMean, MassReduction::kMax, MassReduction::kMedian})
    for (const auto& weights : {std::vector<std::vector<float>>{{1, nan, 2}, {1, 2, 3}, {3, 2, 1}},
                                std::vector<std::vector<float>>{{1, 2, 3}, {3, 2, 1}, {nan, 1, 1}}})
      for (const double mass : reduced(weights, reduction)) EXPECT_TRUE(std::isnan(mass));
}

}  // namespace
}  // namespace kvasir
