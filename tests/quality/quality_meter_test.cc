// Which rows a promise of quality compares, and what it holds for them.
#include "quality/quality_meter.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvasir::test {
namespace {

std::vector<float> row_of(std::int64_t row, float slope) {
  std::vector<float> logits(5);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = slope * static_cast<float>((static_cast<std::size_t>(row) * 7 + i * 3) % 11);
  return logits;
}

double divergence(const std::vector<float>& full, const std::vector<float>& other) {
  double p = 0, q = 0, sum = 0;
  for (const float logit : full) p += std::exp(static_cast<double>(logit));
  for (const float logit : other) q += std::exp(static_cast<double>(logit));
  for (std::size_t i = 0; i < full.size(); ++i)
    sum += std::exp(static_cast<double>(full[i])) / p *
           (static_cast<double>(full[i]) - std::log(p) - static_cast<double>(other[i]) + std::log(q));
  return sum;
}

// Runs a check, and returns the rows that were compared.
std::vector<std::int64_t> check(QualityMeter& meter) {
  std::vector<std::int64_t> rows;
  while (const auto row = meter.row_to_capture(0)) {
    rows.push_back(*row);
    EXPECT_FALSE(meter.row_to_capture(*row + 1)) << "rows come in order";
    meter.capture(*row, row_of(*row, 0.1F));
  }
  EXPECT_TRUE(meter.captured_all());
  EXPECT_LT(rows.back(), meter.check_at());
  EXPECT_EQ(meter.tokens_to_read(), rows.back() + 1);
  for (const std::int64_t row : rows) {
    EXPECT_EQ(meter.row_to_compare(0), row);
    meter.compare(row, row_of(row, 0.3F));
  }
  const std::vector<double> samples = meter.end_check();
  EXPECT_EQ(samples.size(), rows.size());
  for (std::size_t i = 0; i < samples.size() && i < rows.size(); ++i)
    EXPECT_NEAR(samples[i], divergence(row_of(rows[i], 0.3F), row_of(rows[i], 0.1F)), 1e-7);
  return rows;
}

TEST(QualityMeter, ComparesTheGridBehindThePrompt) {
  MemoryBudget budget(1 << 20);
  for (int every = 1; every <= 12; ++every)
    for (int stride = 1; stride <= every; ++stride) {
      const std::int64_t prompt = 10;
      QualityMeter meter({.every = every, .stride = stride}, prompt, 5, &budget);
      ASSERT_TRUE(meter.open());
      std::int64_t next = prompt - 1;  // of the first token
      for (int checks = 1; checks <= 4; ++checks) {
        EXPECT_EQ(meter.check_at(), prompt + checks * every);
        for (const std::int64_t row : check(meter)) {
          EXPECT_EQ(row, next);
          next += stride;
        }
        EXPECT_GT(next, prompt - 1 + checks * every) << "a row before the check is left out";
      }
    }
}

TEST(QualityMeter, ChargesItsRowsAndForgetsThemOnceClosed) {
  const QualityOptions options{.every = 8, .stride = 3};
  const std::uint64_t bytes = QualityMeter::bytes(options, 5);
  EXPECT_EQ(bytes, 3 * 5 * sizeof(float));
  MemoryBudget budget(bytes);
  QualityMeter meter(options, 4, 5, &budget);
  EXPECT_EQ(budget.used(), 0u);
  ASSERT_TRUE(meter.open());
  EXPECT_EQ(budget.used(), bytes);
  QualityMeter other(options, 4, 5, &budget);
  EXPECT_FALSE(other.open());
  meter.capture(3, row_of(3, 0.1F));
  EXPECT_EQ(meter.row_to_capture(0), 6);
  meter.close();
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_EQ(meter.row_to_capture(0), 3) << "captured again";
  EXPECT_TRUE(other.open());
}

}  // namespace
}  // namespace kvasir::test
