#include <gtest/gtest.h>

#include <vector>

#include "generation/sampler.h"

namespace kvasir {
namespace {

TokenId greedy(SamplingOptions options, const std::vector<float>& logits, const std::vector<TokenId>& context = {}) {
  options.temperature = 0;
  EXPECT_TRUE(validate(options).ok()) << validate(options).message();
  Sampler sampler(options);
  for (const TokenId token : context) sampler.observe(token);
  return sampler.sample(logits);
}

TEST(LogitBias, IsAddedToItsTokensAlone) {
  const std::vector<float> logits = {1, 4, 3, 2};
  EXPECT_EQ(greedy({}, logits), 1);
  EXPECT_EQ(greedy({.logit_bias = {{2, 1.5F}}}, logits), 2);
  EXPECT_EQ(greedy({.logit_bias = {{2, 0.5F}}}, logits), 1);
  EXPECT_EQ(greedy({.logit_bias = {{1, -100}}}, logits), 2) << "-100 bans";
  EXPECT_EQ(greedy({.logit_bias = {{0, 100}}}, logits), 0) << "+100 forces";
  EXPECT_EQ(greedy({.logit_bias = {{77, 100}}}, logits), 1) << "tokens beyond the logits have no effect";
}

TEST(LogitBias, ForcesUnderSamplingToo) {
  SamplingOptions options{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 3};
  options.logit_bias = {{3, 100}};
  Sampler sampler(options);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(sampler.sample(std::vector<float>{5, 5, 5, -5}), 3);
}

// A penalty divides a positive logit and multiplies a negative one: the order shows where the bias changes the sign.
TEST(LogitBias, ComesBeforePenalties) {
  SamplingOptions options{.repetition_penalty = 2, .logit_bias = {{0, -2}}};
  // Token 0: (1 - 2) * 2 = -2; the other order would give 1 / 2 - 2 = -1.5.
  EXPECT_EQ(greedy(options, {1, -1.75F}, {0}), 1);
  EXPECT_EQ(greedy(options, {1, -2.25F}, {0}), 0);
}

TEST(LogitBias, IsChecked) {
  const auto refused = [](std::vector<std::pair<TokenId, float>> bias) {
    SamplingOptions options;
    options.logit_bias = std::move(bias);
    const Status status = validate(options);
    return status.code() == StatusCode::kInvalidArgument && status.settings().front() == "logit_bias";
  };
  EXPECT_TRUE(refused({{0, 100.5F}}));
  EXPECT_TRUE(refused({{0, -101}}));
  EXPECT_TRUE(refused({{0, std::numeric_limits<float>::quiet_NaN()}}));
  EXPECT_TRUE(refused({{-1, 1}}));
  EXPECT_TRUE(refused({{5, 1}, {2, 1}, {5, 2}}));
  std::vector<std::pair<TokenId, float>> many;
  for (TokenId token = 0; token < 1024; ++token) many.emplace_back(token, 1);
  EXPECT_FALSE(refused(many));
  many.emplace_back(1024, 1);
  EXPECT_TRUE(refused(many));
}

TEST(LogitBias, IsPartOfTheState) {
  const Sampler sampler(SamplingOptions{.temperature = 0, .logit_bias = {{2, 50}}});
  Result<Sampler> copy = Sampler::from_state(sampler.state());
  ASSERT_TRUE(copy.ok());
  EXPECT_EQ(copy->sample(std::vector<float>{9, 1, 1}), 2);
}

}  // namespace
}  // namespace kvasir
