// The DRY penalty against its definition, alone, in the sampler, and over text.
#include "generation/dry_penalty.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "generation/generation.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using Tokens = std::vector<TokenId>;

// The longest n such that the last n tokens of the context stand before some earlier place of `token`, by trying all.
std::size_t longest_repetition(const Tokens& context, TokenId token) {
  std::size_t longest = 0;
  for (std::size_t at = 0; at < context.size(); ++at) {
    if (context[at] != token) continue;
    std::size_t n = 0;
    while (n < at && context[at - 1 - n] != kNoToken && context[at - 1 - n] == context[context.size() - 1 - n]) ++n;
    longest = std::max(longest, n);
  }
  return longest;
}

SamplingOptions greedy(float multiplier) {
  SamplingOptions options;
  options.temperature = 0;
  options.dry_multiplier = multiplier;
  return options;
}

TEST(DryPenalty, IsAsDefined) {
  std::mt19937 random(3);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int lowered = 0;
  for (int round = 0; round < 300; ++round) {
    SamplingOptions options = greedy(0.8F);
    options.dry_base = 1.5F;
    options.dry_allowed_length = pick(1, 4);
    options.dry_window = pick(1, 60);
    DryPenalty dry(options);
    Tokens context;
    const int kinds = pick(2, 5);  // few, so that much is repeated
    for (int i = pick(0, 200); i > 0; --i) {
      const TokenId token = pick(0, 30) == 0 ? kNoToken : pick(1, kinds);
      context.push_back(token);
      dry.observe(token);
    }
    if (context.size() > static_cast<std::size_t>(options.dry_window))
      context.erase(context.begin(), context.end() - options.dry_window);
    EXPECT_EQ(Tokens(dry.tokens().begin(), dry.tokens().end()), context);
    const auto penalties = dry.penalties();
    EXPECT_FALSE(penalties.contains(kNoToken));
    for (TokenId token = 1; token <= kinds; ++token) {
      const int excess = static_cast<int>(longest_repetition(context, token)) - options.dry_allowed_length;
      const double expected = excess < 0 ? 0 : std::min(1e6, static_cast<double>(0.8F) * std::pow(1.5, excess));
      const auto found = penalties.find(token);
      EXPECT_NEAR(found == penalties.end() ? 0 : found->second, expected, 1e-9 * expected) << round << ": " << token;
      lowered += expected > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(lowered, 200);
}

TEST(DryPenalty, EndsALoopThatGreedyDecodingWouldStayIn) {
  // The largest logit is that of the next token of a loop of 10; 11 is always the second choice.
  const auto write = [](const SamplingOptions& options) {
    Sampler sampler(options);
    Tokens written;
    for (int i = 0; i < 100; ++i) {
      std::vector<float> logits(12, 0.0F);
      logits[static_cast<std::size_t>(i % 10)] = 3;
      logits[11] = 1;
      const TokenId token = sampler.sample(logits);
      sampler.observe(token);
      written.push_back(token);
    }
    return std::ranges::count(written, 11);
  };
  EXPECT_EQ(write(greedy(0)), 0);
  EXPECT_GT(write(greedy(0.8F)), 5);
}

TEST(DryPenalty, SamplerContinuesFromItsState) {
  SamplingOptions options;
  options.dry_multiplier = 0.8F;
  options.dry_window = 20;
  options.seed = 5;
  Sampler whole(options);
  Sampler parts(options);
  std::mt19937 random(7);
  for (int i = 0; i < 100; ++i) {
    std::vector<float> logits(6);
    for (float& logit : logits) logit = std::uniform_real_distribution<float>(0, 3)(random);
    auto next = Sampler::from_state(parts.state());
    ASSERT_TRUE(next.ok()) << next.status().message();
    parts = std::move(*next);
    const TokenId token = whole.sample(logits);
    ASSERT_EQ(parts.sample(logits), token) << i;
    whole.observe(token, token == 2);
    parts.observe(token, token == 2);
    ASSERT_EQ(parts.state().dry, whole.state().dry);
  }
  SamplerState damaged = whole.state();
  damaged.options.dry_window = 10;
  EXPECT_EQ(Sampler::from_state(damaged).status().code(), StatusCode::kDataLoss);
  damaged = whole.state();
  damaged.options.dry_multiplier = 0;
  EXPECT_EQ(Sampler::from_state(damaged).status().code(), StatusCode::kDataLoss);
}

TEST(DryPenalty, TheOptionsHaveRanges) {
  const auto message = [](auto member, auto value) {
    SamplingOptions options;
    options.*member = value;
    return validate(options).message();
  };
  using S = SamplingOptions;
  EXPECT_EQ(message(&S::dry_multiplier, -1.0F), "dry_multiplier is -1; it must be at least 0 and at most 100");
  EXPECT_EQ(message(&S::dry_base, 0.5F), "dry_base is 0.5; it must be at least 1 and at most 10");
  EXPECT_EQ(message(&S::dry_allowed_length, 0), "dry_allowed_length is 0; it must be at least 1 and at most 1024");
  EXPECT_EQ(message(&S::dry_window, 65537), "dry_window is 65537; it must be at least 1 and at most 65536");
}

// A line break ends a repetition: the same words may begin each line.
TEST(DryPenalty, LineBreaksEndRepetitionsOfText) {
  const auto tokenizer = test::tokenizer_of(test::byte_vocabulary());
  const auto goes_on = [&](std::string_view text, char next) {
    const Tokens tokens = test::byte_tokens(text);
    GenerateOptions options;
    options.sampling = greedy(100);
    Generation generation(*tokenizer, options, {}, tokens);
    std::vector<float> logits(tokenizer->vocabulary().pieces.size(), 0.0F);
    const TokenId wanted = test::byte_token(next);
    logits[static_cast<std::size_t>(wanted)] = 1;
    return **generation.push(logits) == wanted;
  };
  EXPECT_FALSE(goes_on("abcd abc", 'd'));
  EXPECT_TRUE(goes_on("abcd abc", 'e'));
  EXPECT_TRUE(goes_on("a\nd a\n", 'd')) << "one token since the break is fewer than the allowed two";
  EXPECT_TRUE(goes_on("abc\nabc", '\n')) << "a break is never lowered";
}

}  // namespace
}  // namespace kvasir
