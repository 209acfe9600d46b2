// The controller of a promise of quality: what it never does, and where it settles.
#include "quality/quality_controller.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvasir::test {
namespace {

constexpr QualityController::Range kRange{500, 64, 8000, 16};

// Samples of a policy whose mean is c / budget, with the long tail that divergences of tokens have.
std::vector<double> noisy(double mean, std::mt19937_64& random) {
  std::lognormal_distribution<double> tail(-0.5, 1);  // of mean 1
  std::vector<double> samples(16);
  for (double& sample : samples) sample = mean * tail(random);
  return samples;
}

TEST(QualityController, HoldsTheBoundOfNoisyCurvesAndSettles) {
  for (const double c : {2.0, 10.0, 40.0, 150.0})
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      std::mt19937_64 random(seed);
      QualityController controller(0.05, kRange);
      int changes = 0;
      for (int check = 0; check < 400; ++check) {
        const std::int64_t before = controller.budget();
        changes += controller.add(noisy(c / static_cast<double>(before), random)) != before && check >= 200 ? 1 : 0;
      }
      const double needed = c / 0.05;  // tokens whose mean is the bound
      EXPECT_LE(controller.mean(), 0.05 * 1.1) << c;
      if (needed > 64 * 2) {
        EXPECT_GE(controller.mean(), 0.05 * 0.3) << "too careful: " << c;
      }
      EXPECT_LE(static_cast<double>(controller.budget()), std::max(needed * 4, 128.0)) << c;
      EXPECT_LE(changes, 40) << "the budget swings: " << c;
    }
}

TEST(QualityController, StaysWithinItsRange) {
  std::mt19937_64 random(7);
  for (int run = 0; run < 50; ++run) {
    QualityController controller(0.05, kRange);
    for (int check = 0; check < 100; ++check) {
      const double mean = std::exp(std::uniform_real_distribution<double>(-9, 3)(random));
      const std::int64_t budget = controller.add(noisy(mean, random));
      ASSERT_GE(budget, kRange.least);
      ASSERT_LE(budget, kRange.most);
      ASSERT_TRUE(budget % kRange.unit == 0 || budget == kRange.first) << budget;
    }
  }
}

TEST(QualityController, GrowsToTheMostAndShrinksToTheLeast) {
  const std::vector<double> far(16, 1.0), none(16, 0.0);
  QualityController grows(0.05, kRange);
  for (std::int64_t last = kRange.first; grows.budget() < kRange.most; last = grows.budget())
    ASSERT_GE(grows.add(far), std::min(kRange.most, last + last / 2)) << "by less than a half";
  EXPECT_EQ(grows.add(far), kRange.most);
  EXPECT_FALSE(grows.holds());
  EXPECT_DOUBLE_EQ(grows.largest_mean(), 1.0);
  QualityController shrinks(0.05, kRange);
  for (int check = 0; check < 200; ++check) {
    const std::int64_t before = shrinks.budget();
    ASSERT_GE(shrinks.add(none), before * 4 / 5 - kRange.unit) << "by more than a fifth";
  }
  EXPECT_EQ(shrinks.budget(), kRange.least);
  EXPECT_TRUE(shrinks.holds());
}

TEST(QualityController, ALargerSampleNeverGivesASmallerBudget) {
  std::mt19937_64 random(11);
  for (int run = 0; run < 200; ++run) {
    QualityController history(0.05, kRange);
    const int before = static_cast<int>(random() % 12);
    for (int check = 0; check < before; ++check)
      history.add(noisy(std::exp(std::uniform_real_distribution<double>(-6, 0)(random)), random));
    std::int64_t last = 0;
    for (double mean = 0; mean < 1; mean = mean * 1.3 + 0.001) {
      QualityController next = history;
      const std::int64_t budget = next.add(std::vector<double>(16, mean));
      ASSERT_GE(budget, last) << "after " << before << " checks, mean " << mean;
      last = budget;
    }
  }
}

TEST(QualityController, EqualSamplesGiveEqualBudgets) {
  std::mt19937_64 random(3);
  QualityController one(0.02, kRange), other(0.02, kRange);
  for (int check = 0; check < 50; ++check) {
    const std::vector<double> samples = noisy(0.03, random);
    ASSERT_EQ(one.add(samples), other.add(samples));
  }
  EXPECT_EQ(one.mean(), other.mean());
}

}  // namespace
}  // namespace kvasir::test
