// The steps of truncation against other implementations (truncation_vectors.py), and in the sampler.
#include "generation/truncation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "generation/sampler.h"
#include "generation/special_floats.h"
#include "generation/truncation_vectors.h"

namespace kvasir {
namespace {

std::vector<TokenCandidate> candidates_of(const std::vector<float>& logits) {
  std::vector<TokenCandidate> candidates;
  for (std::size_t i = 0; i < logits.size(); ++i) candidates.push_back({static_cast<TokenId>(i), logits[i], 0});
  return candidates;
}

std::vector<int> ids(const std::vector<TokenCandidate>& candidates) {
  std::vector<int> tokens;
  for (const TokenCandidate& candidate : candidates) tokens.push_back(candidate.token);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

TEST(Truncation, KeepsWhatOthersKeep) {
  int dropped = 0;
  for (const test::TruncationVector& want : test::kTruncationVectors) {
    auto candidates = candidates_of(want.logits);
    keep_typical(candidates, weigh(candidates, 1), static_cast<double>(want.typical_p));
    EXPECT_EQ(ids(candidates), want.typical);

    candidates = candidates_of(want.logits);
    exclude_top_choices(candidates, weigh(candidates, 1), static_cast<double>(want.xtc_threshold));
    EXPECT_EQ(ids(candidates), want.xtc);
    dropped += want.xtc.size() < want.logits.size() ? 1 : 0;

    candidates = candidates_of(want.logits);
    keep_top_n_sigma(candidates, want.logits, static_cast<double>(want.top_n_sigma));
    EXPECT_EQ(ids(candidates), want.sigma);

    candidates = candidates_of(want.logits);
    const double temperature =
        dynamic_temperature(candidates, weigh(candidates, 1), static_cast<double>(want.temperature),
                            static_cast<double>(want.range), static_cast<double>(want.exponent));
    EXPECT_NEAR(temperature, want.dynamic, 2e-5 * want.dynamic) << "theirs is in float";
  }
  EXPECT_GE(dropped, 4) << "XTC did something";
}

TEST(Truncation, UnusualLogits) {
  for (const std::vector<float>& logits :
       {std::vector<float>{1}, {1, 1, 1}, {-test::kInf, 2}, {test::kInf, test::kInf, 0}}) {
    auto candidates = candidates_of(logits);
    keep_typical(candidates, weigh(candidates, 1), 0.2);
    EXPECT_EQ(candidates.size(), 1U);
    candidates = candidates_of(logits);
    keep_top_n_sigma(candidates, logits, 0.1);
    EXPECT_FALSE(candidates.empty());
    candidates = candidates_of(logits);
    exclude_top_choices(candidates, weigh(candidates, 1), 0.2);
    EXPECT_FALSE(candidates.empty());
    const double temperature = dynamic_temperature(candidates, weigh(candidates, 1), 0.5, 0.7, 1);
    EXPECT_GE(temperature, 0);
    EXPECT_LE(temperature, 1.2 + 1e-12);
  }
}

SamplingOptions untruncated(std::uint64_t seed) {
  return {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed};
}

std::map<TokenId, int> drawn(const SamplingOptions& options, const std::vector<float>& logits, int draws) {
  Sampler sampler(options);
  std::map<TokenId, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.sample(logits)];
  return counts;
}

// Probabilities 0.4, 0.3, 0.2 and 0.1; from 0.15 on three tokens are likely, of which XTC leaves the third.
TEST(Truncation, XtcHappensAsOftenAsAsked) {
  const std::vector<float> logits = {std::log(0.4F), std::log(0.3F), std::log(0.2F), std::log(0.1F)};
  SamplingOptions options = untruncated(1);
  options.xtc_threshold = 0.15F;
  options.xtc_probability = 1;
  auto counts = drawn(options, logits, 9000);
  EXPECT_EQ(counts[0] + counts[1], 0);
  EXPECT_NEAR(counts[2], 6000, 300);
  options.xtc_probability = 0.5F;
  counts = drawn(options, logits, 10000);
  EXPECT_NEAR(counts[0], 2000, 250);
  EXPECT_NEAR(counts[2], 1000 + 3333, 300);
  options.xtc_threshold = 0.6F;
  EXPECT_EQ(drawn(options, logits, 500), drawn(untruncated(1), logits, 500)) << "above 0.5 it takes no draw either";
}

TEST(Truncation, ComesInOrder) {
  // Top-k leaves two tokens, so the others count for nothing in what is typical.
  const std::vector<float> logits = {3, 2.9F, 0, 0, 0, 0, 0, 0};
  SamplingOptions options = untruncated(2);
  options.top_k = 2;
  options.typical_p = 0.3F;
  EXPECT_EQ(drawn(options, logits, 300).size(), 1U);
  options.typical_p = 1;
  EXPECT_EQ(drawn(options, logits, 300).size(), 2U);
  // A dynamic temperature that comes to 0 draws the largest.
  options = untruncated(2);
  options.dynatemp_range = 1;
  options.dynatemp_exponent = 10;
  EXPECT_EQ(drawn(options, {9, 1, 0}, 300).size(), 1U);
}

TEST(Truncation, IsChecked) {
  const auto wrong = [](auto option, float value) {
    SamplingOptions options;
    options.*option = value;
    return !validate(options).ok();
  };
  EXPECT_TRUE(wrong(&SamplingOptions::typical_p, 0));
  EXPECT_TRUE(wrong(&SamplingOptions::typical_p, 1.1F));
  EXPECT_TRUE(wrong(&SamplingOptions::xtc_probability, -0.1F));
  EXPECT_TRUE(wrong(&SamplingOptions::xtc_threshold, 2));
  EXPECT_TRUE(wrong(&SamplingOptions::top_n_sigma, test::kNan));
  EXPECT_TRUE(wrong(&SamplingOptions::dynatemp_range, 101));
  EXPECT_TRUE(wrong(&SamplingOptions::dynatemp_exponent, -1));
  EXPECT_FALSE(wrong(&SamplingOptions::dynatemp_exponent, 0));
}

}  // namespace
}  // namespace kvasir
