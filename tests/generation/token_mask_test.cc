// Masks of allowed tokens: the draw equals that of a sampler whose vocabulary has only the allowed tokens.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "generation/sampler.h"
#include "generation/special_floats.h"

namespace kvasir {
namespace {

std::vector<std::uint64_t> mask_of(const std::vector<TokenId>& tokens, std::size_t words) {
  std::vector<std::uint64_t> mask(words);
  for (const TokenId token : tokens) mask[static_cast<std::size_t>(token) / 64] |= std::uint64_t{1} << (token % 64);
  return mask;
}

TEST(TokenMask, TheDrawIsThatOfAVocabularyOfTheAllowedTokens) {
  std::mt19937_64 random(1);
  for (const int size : {1, 63, 64, 65, 300, 1000})
    for (const int k : {0, 5, 256, 900})
      for (const float temperature : {0.0F, 0.9F}) {
        const SamplingOptions options{.temperature = temperature, .top_k = k, .top_p = 0.9F, .seed = 7};
        Sampler masked(options), few(options);
        for (int draw = 0; draw < 20; ++draw) {
          std::vector<float> logits(static_cast<std::size_t>(size)), kept;
          std::vector<TokenId> allowed;
          for (TokenId token = 0; token < size; ++token) {
            const float logit = static_cast<float>(random() % 1000) * 0.01F;
            logits[static_cast<std::size_t>(token)] = logit;
            if (random() % 3 != 0 && token != 0) continue;
            allowed.push_back(token);
            kept.push_back(logit);
          }
          const auto mask = mask_of(allowed, static_cast<std::size_t>(size + 63) / 64);
          ASSERT_EQ(masked.sample(logits, mask), allowed[static_cast<std::size_t>(few.sample(kept))])
              << size << " tokens, k " << k << ", temperature " << temperature;
        }
      }
}

TEST(TokenMask, ComesAfterBias) {
  Sampler sampler(SamplingOptions{.temperature = 0, .logit_bias = {{0, 100}}});
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 2, 3}, mask_of({1}, 1)), 1);
}

TEST(TokenMask, NoneAllowedIsNoToken) {
  for (const float temperature : {0.0F, 1.0F}) {
    Sampler sampler(SamplingOptions{.temperature = temperature});
    const std::vector<float> logits = {1, test::kInf, 3};
    EXPECT_EQ(sampler.sample(logits, mask_of({}, 1)), kNoToken);
    EXPECT_EQ(sampler.sample(std::vector<float>{1, test::kNan}, mask_of({1}, 1)), kNoToken);
    EXPECT_EQ(sampler.sample(std::vector<float>{1, -test::kInf}, mask_of({1}, 1)), 1) << "the only one allowed";
  }
}

TEST(TokenMask, TokensBeyondItAreExcluded) {
  std::vector<float> logits(200, 0);
  logits[150] = 50;
  Sampler sampler(SamplingOptions{.temperature = 0});
  EXPECT_EQ(sampler.sample(logits), 150);
  EXPECT_EQ(sampler.sample(logits, std::vector<std::uint64_t>{~std::uint64_t{0}}), 0);
}

}  // namespace
}  // namespace kvasir
