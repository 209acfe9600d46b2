// Log-probabilities against the formula -log(sum of exp(l_j - l_i)) in long double, over all tokens.
#include "generation/log_probabilities.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "generation/special_floats.h"

namespace kvasir {
namespace {

using test::kInf;
using test::kNan;

double by_formula(const std::vector<float>& logits, std::size_t token) {
  long double sum = 0;
  for (const float other : logits)
    sum += std::exp(static_cast<long double>(other) - static_cast<long double>(logits[token]));
  return static_cast<double>(-std::log(sum));
}

std::vector<TokenId> tokens_of(const std::vector<TokenLogProbability>& top) {
  std::vector<TokenId> tokens;
  for (const TokenLogProbability& entry : top) tokens.push_back(entry.token);
  return tokens;
}

TEST(LogProbabilities, AgreeWithTheFormula) {
  std::mt19937 random(1);
  for (const float spread : {0.1F, 2.0F, 30.0F}) {
    std::normal_distribution<float> normal(5.0F, spread);
    std::vector<float> logits(500);
    for (float& logit : logits) logit = normal(random);
    const auto top = top_log_probabilities(logits, 500);
    ASSERT_EQ(top.size(), 500U);
    std::vector<std::size_t> order(500);
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    double total = 0;
    for (std::size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(top[i].token, static_cast<TokenId>(order[i]));
      const double want = by_formula(logits, order[i]);
      ASSERT_NEAR(top[i].log_probability, want, 1e-13 * (1 + std::abs(want)));
      ASSERT_EQ(log_probability(logits, top[i].token), top[i].log_probability);
      total += std::exp(top[i].log_probability);
    }
    EXPECT_NEAR(total, 1, 1e-12);
    const auto few = top_log_probabilities(logits, 7);
    ASSERT_EQ(few.size(), 7U);
    for (std::size_t i = 0; i < few.size(); ++i) {
      EXPECT_EQ(few[i].token, top[i].token);
      EXPECT_EQ(few[i].log_probability, top[i].log_probability);
    }
  }
}

TEST(LogProbabilities, KnownValues) {
  const std::vector<float> logits = {std::log(1.0F), std::log(2.0F), std::log(5.0F)};
  const auto top = top_log_probabilities(logits, 2);
  EXPECT_EQ(tokens_of(top), (std::vector<TokenId>{2, 1}));
  EXPECT_NEAR(top[0].log_probability, std::log(0.625), 1e-7);
  EXPECT_NEAR(top[1].log_probability, std::log(0.25), 1e-7);
}

TEST(LogProbabilities, TiesGoToTheSmallerId) {
  const std::vector<float> logits = {1, 3, 2, 3, -1, 3, 2};
  EXPECT_EQ(tokens_of(top_log_probabilities(logits, 2)), (std::vector<TokenId>{1, 3}));
  EXPECT_EQ(tokens_of(top_log_probabilities(logits, 7)), (std::vector<TokenId>{1, 3, 5, 2, 6, 0, 4}));
}

TEST(LogProbabilities, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits = {3e38F, 3e38F, -3e38F};
  const auto top = top_log_probabilities(logits, 3);
  EXPECT_NEAR(top[0].log_probability, std::log(0.5), 1e-15);
  EXPECT_NEAR(top[1].log_probability, std::log(0.5), 1e-15);
  EXPECT_TRUE(std::isfinite(top[2].log_probability));
  EXPECT_LT(top[2].log_probability, -1e38);
}

TEST(LogProbabilities, NanTakesNoPartAndInfinitiesShare) {
  const std::vector<float> nan = {kNan, 2, kNan, 2};
  EXPECT_EQ(tokens_of(top_log_probabilities(nan, 4)), (std::vector<TokenId>{1, 3}));
  EXPECT_NEAR(top_log_probabilities(nan, 4)[0].log_probability, std::log(0.5), 1e-15);
  EXPECT_EQ(log_probability(nan, 0), -kInf);
  EXPECT_TRUE(top_log_probabilities(std::vector<float>{kNan, kNan}, 2).empty());
  EXPECT_TRUE(top_log_probabilities({}, 2).empty());
  EXPECT_TRUE(top_log_probabilities(nan, 0).empty());
  const std::vector<float> infinite = {kInf, 0, kInf, -kInf};
  const auto top = top_log_probabilities(infinite, 4);
  EXPECT_EQ(tokens_of(top), (std::vector<TokenId>{0, 2, 1, 3}));
  EXPECT_NEAR(top[1].log_probability, std::log(0.5), 1e-15);
  EXPECT_EQ(top[2].log_probability, -kInf);
  EXPECT_EQ(top[3].log_probability, -kInf);
  EXPECT_NEAR(log_probability(std::vector<float>{-kInf, -kInf}, 1), std::log(0.5), 1e-15);
}

}  // namespace
}  // namespace kvasir
