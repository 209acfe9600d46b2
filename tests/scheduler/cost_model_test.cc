// Rates of passes, and what is concluded from them.
#include "scheduler/cost_model.h"

#include <gtest/gtest.h>

#include <random>

namespace kvasir::test {
namespace {

constexpr PassRates kTrue{0.05, 0.002, 0.004};

TEST(CostModel, LearnsWhatPassesCost) {
  RateEstimator estimator;
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> noise(0.97, 1.03);
  double away = 0;
  for (int i = 0; i < 2000; ++i) {
    const int prompt = random() % 3 == 0 ? static_cast<int>(random() % 256) : 0;
    const int generated = static_cast<int>(random() % 16);
    estimator.note(prompt, generated, kTrue.seconds(prompt, generated) * noise(random));
    if (i < 100) continue;
    const double told = estimator.rates().seconds(100, 8) / kTrue.seconds(100, 8);
    away = std::max(away, std::abs(told - 1));
  }
  EXPECT_LT(away, 0.1);
  EXPECT_NEAR(estimator.rates().prompt_row, kTrue.prompt_row, 0.1 * kTrue.prompt_row);
  EXPECT_EQ(estimator.passes(), 2000);
}

// Only generation for long, always as much: what is known of prompts stays, and follows when they cost more.
TEST(CostModel, StaysSoundWhereNothingVaries) {
  RateEstimator estimator;
  for (int i = 0; i < 50; ++i) estimator.note(i % 2 * 256, 4, kTrue.seconds(i % 2 * 256, 4));
  for (int i = 0; i < 100000; ++i) estimator.note(0, 4, kTrue.seconds(0, 4));
  EXPECT_NEAR(estimator.rates().prompt_row, kTrue.prompt_row, 0.1 * kTrue.prompt_row);
  const PassRates slower{kTrue.pass, 3 * kTrue.prompt_row, kTrue.generated_row};
  for (int i = 0; i < 100; ++i) estimator.note(i % 2 * 64, 4, slower.seconds(i % 2 * 64, 4));
  EXPECT_NEAR(estimator.rates().prompt_row, slower.prompt_row, 0.1 * slower.prompt_row);
}

TEST(CostModel, PromptRowsKeepAPassWithinTheBound) {
  EXPECT_EQ(prompt_rows_within(0, kTrue, 0, 10, 256), 256);
  EXPECT_EQ(prompt_rows_within(0.1, kTrue, 0, 0, 256), 256) << "nobody waits for a token";
  const int rows = prompt_rows_within(0.2005, kTrue, 0.01, 10, 256);
  EXPECT_LE(kTrue.seconds(rows, 10) + 0.01, 0.2005);
  EXPECT_GT(kTrue.seconds(rows + 1, 10) + 0.01, 0.2005);
  EXPECT_EQ(prompt_rows_within(10, kTrue, 0, 10, 256), 256);
  EXPECT_EQ(prompt_rows_within(0.001, kTrue, 0, 10, 256), kLeastPromptRows) << "prompts come to their end";
  EXPECT_EQ(prompt_rows_within(0.001, kTrue, 0, 10, 3), 3);
}

TEST(CostModel, GeneratedTokensCostMoreWhereTheyComeOneAtATime) {
  const double read = kTrue.seconds(256, 0) / 256;
  EXPECT_DOUBLE_EQ(preemption_cost({.prompt = 100, .generated = 20, .by_range = true}, kTrue, 256).least(), 120 * read);
  EXPECT_DOUBLE_EQ(preemption_cost({.prompt = 100, .generated = 20}, kTrue, 256).least(),
                   100 * read + 20 * kTrue.seconds(0, 1));
  EXPECT_DOUBLE_EQ(
      preemption_cost({.prompt = 100, .generated = 20, .cached = 64, .by_range = true}, kTrue, 256).least(), 56 * read);
  EXPECT_DOUBLE_EQ((PreemptionCost{.recompute = 3, .swap = 2}.least()), 2);
}

}  // namespace
}  // namespace kvasir::test
