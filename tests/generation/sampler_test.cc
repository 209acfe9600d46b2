#include "generation/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "generation/special_floats.h"
#include "support/scaling.h"

namespace kvasir {
namespace {

using test::kInf;
using test::kNan;

// Everything off: the plain softmax.
SamplingOptions plain() {
  SamplingOptions options;
  options.temperature = 1.0F;
  options.top_k = 0;
  options.top_p = 1.0F;
  options.min_p = 0.0F;
  options.seed = 1;
  return options;
}

// The distribution by definition: every step a full sort and a softmax in double.
std::map<int, double> expected_distribution(const std::vector<float>& logits, const SamplingOptions& options,
                                            const std::vector<int>& context) {
  std::map<int, int> seen;
  const std::size_t window = static_cast<std::size_t>(options.penalty_window);
  for (std::size_t i = context.size() > window ? context.size() - window : 0; i < context.size(); ++i) {
    ++seen[context[i]];
  }
  std::vector<std::pair<double, int>> tokens;
  for (int token = 0; token < static_cast<int>(logits.size()); ++token) {
    double logit = logits[static_cast<std::size_t>(token)];
    if (seen.contains(token)) {
      logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
      logit -= static_cast<double>(options.frequency_penalty) * seen[token];
      logit -= options.presence_penalty;
    }
    tokens.emplace_back(-logit, token);
  }
  std::sort(tokens.begin(), tokens.end());
  if (options.top_k > 0 && tokens.size() > static_cast<std::size_t>(options.top_k)) {
    tokens.resize(static_cast<std::size_t>(options.top_k));
  }
  const auto softmax = [&](double temperature) {
    double sum = 0;
    for (const auto& [negative, token] : tokens) sum += std::exp(-negative / temperature);
    std::vector<double> p;
    for (const auto& [negative, token] : tokens) p.push_back(std::exp(-negative / temperature) / sum);
    return p;
  };
  if (options.top_p < 1) {
    const std::vector<double> p = softmax(1);
    double mass = 0;
    std::size_t kept = 0;
    while (kept < p.size() && mass < options.top_p) mass += p[kept++];
    tokens.resize(kept);
  }
  const std::vector<double> p = softmax(1);
  std::size_t kept = 0;
  while (kept < p.size() && p[kept] >= options.min_p * p[0]) ++kept;
  tokens.resize(kept);
  const std::vector<double> final = softmax(options.temperature);
  std::map<int, double> distribution;
  for (std::size_t i = 0; i < tokens.size(); ++i) distribution[tokens[i].second] = final[i];
  return distribution;
}

// Pearson's test on `draws` samples. The bound is the mean plus six standard deviations of chi-square (df, sqrt(2 df)):
// a right sampler fails it about once in a million seeds, and the seeds are fixed.
void expect_distribution(const std::vector<float>& logits, const SamplingOptions& options,
                         const std::vector<int>& context = {}, int draws = 100000) {
  const std::map<int, double> expected = expected_distribution(logits, options, context);
  Sampler sampler(options);
  for (const int token : context) sampler.observe(token);
  std::map<int, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.sample(logits)];
  for (const auto& [token, count] : counts) {
    ASSERT_TRUE(expected.contains(token)) << "token " << token << " was drawn " << count << " times";
  }
  double chi2 = 0;
  double rest_expected = 0;  // cells too thin for the approximation, pooled
  double rest_count = 0;
  int cells = 0;
  const auto add = [&](double e, double n) {
    chi2 += (n - e) * (n - e) / e;
    ++cells;
  };
  for (const auto& [token, p] : expected) {
    const double e = p * draws;
    if (e < 10) {
      rest_expected += e;
      rest_count += counts[token];
    } else {
      add(e, counts[token]);
    }
  }
  if (rest_expected >= 10) add(rest_expected, rest_count);
  const double df = std::max(1, cells - 1);
  EXPECT_LT(chi2, df + 6 * std::sqrt(2 * df) + 6) << cells << " cells";
}

std::vector<float> random_logits(std::size_t size, unsigned seed, float spread = 2.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, spread);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

TEST(Sampler, PlainSoftmax) {
  expect_distribution({std::log(1.0F), std::log(2.0F), std::log(3.0F), std::log(4.0F)}, plain());
  expect_distribution(random_logits(200, 1), plain());
}

TEST(Sampler, Temperature) {
  for (const float temperature : {0.3F, 0.8F, 2.0F, 100.0F}) {
    SamplingOptions options = plain();
    options.temperature = temperature;
    expect_distribution(random_logits(50, 2), options);
  }
}

TEST(Sampler, TopK) {
  for (const int k : {1, 2, 7, 49, 50, 1000}) {
    SamplingOptions options = plain();
    options.top_k = k;
    expect_distribution(random_logits(50, 3), options);
  }
}

TEST(Sampler, LargeTopK) {
  SamplingOptions options = plain();
  options.top_k = 700;  // past the size where the method of selection changes
  expect_distribution(random_logits(1000, 4, 0.5F), options, {}, 30000);
}

TEST(Sampler, TopP) {
  for (const float p : {0.01F, 0.3F, 0.5F, 0.9F, 0.999F}) {
    SamplingOptions options = plain();
    options.top_p = p;
    expect_distribution(random_logits(50, 5), options);
  }
  SamplingOptions options = plain();
  options.top_p = 0.8F;  // several hundred tokens hold this mass: more than one round of ordering
  expect_distribution(random_logits(1000, 6, 0.5F), options, {}, 30000);
}

TEST(Sampler, TopPKeepsTheTokenThatCrosses) {
  SamplingOptions options = plain();
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  options.top_p = 0.6F;
  Sampler sampler(options);
  std::map<int, int> counts;
  for (int i = 0; i < 2000; ++i) ++counts[sampler.sample(logits)];
  EXPECT_GT(counts[0], 0);
  EXPECT_GT(counts[1], 0);
  EXPECT_EQ(counts[2], 0);
}

TEST(Sampler, MinP) {
  for (const float p : {0.01F, 0.1F, 0.5F, 1.0F}) {
    SamplingOptions options = plain();
    options.min_p = p;
    expect_distribution(random_logits(50, 7), options);
  }
}

TEST(Sampler, MinPLooksAtTheDistributionBeforeTemperature) {
  SamplingOptions options = plain();
  options.min_p = 0.4F;
  options.temperature = 50.0F;  // by now everything is nearly equal
  const std::vector<float> logits = {std::log(0.6F), std::log(0.3F), std::log(0.1F)};
  Sampler sampler(options);
  for (int i = 0; i < 2000; ++i) EXPECT_NE(sampler.sample(logits), 2);
}

TEST(Sampler, Penalties) {
  const std::vector<float> logits = random_logits(20, 8);
  const std::vector<int> context = {3, 3, 3, 5, 0, 19, 5};
  SamplingOptions options = plain();
  options.repetition_penalty = 1.7F;
  expect_distribution(logits, options, context);
  options = plain();
  options.frequency_penalty = 0.6F;
  expect_distribution(logits, options, context);
  options = plain();
  options.presence_penalty = -0.9F;
  expect_distribution(logits, options, context);
  options.repetition_penalty = 0.5F;
  options.frequency_penalty = -0.3F;
  expect_distribution(logits, options, context);
}

TEST(Sampler, PenaltyWindow) {
  const std::vector<float> logits = {0.0F, 0.0F, 0.0F, 0.0F};
  const std::vector<int> context = {0, 0, 0, 1, 2, 1, 0, 3, 3, 2};
  for (const int window : {0, 1, 2, 5, 9, 10, 100}) {
    SamplingOptions options = plain();
    options.frequency_penalty = 0.5F;
    options.presence_penalty = 0.3F;
    options.penalty_window = window;
    expect_distribution(logits, options, context, 20000);
  }
}

TEST(Sampler, PenaltyWindowForgets) {
  SamplingOptions options = plain();
  options.temperature = 0.0F;
  options.presence_penalty = 1.0F;
  options.penalty_window = 3;
  Sampler sampler(options);
  const std::vector<float> logits = {1.5F, 1.0F, 0.0F};
  EXPECT_EQ(sampler.sample(logits), 0);
  sampler.observe(0);
  EXPECT_EQ(sampler.sample(logits), 1);
  sampler.observe(2);
  sampler.observe(2);
  EXPECT_EQ(sampler.sample(logits), 1);
  sampler.observe(2);
  EXPECT_EQ(sampler.sample(logits), 0);
}

TEST(Sampler, ObservedTokensOutsideTheVocabularyDoNoHarm) {
  SamplingOptions options = plain();
  options.presence_penalty = 5.0F;
  options.temperature = 0.0F;
  Sampler sampler(options);
  sampler.observe(-1);
  sampler.observe(1000);
  EXPECT_EQ(sampler.sample(std::vector<float>{1.0F, 2.0F}), 1);
}

TEST(Sampler, AllCombined) {
  std::mt19937 random(9);
  for (unsigned round = 0; round < 20; ++round) {
    SamplingOptions options;
    options.temperature = std::uniform_real_distribution<float>(0.2F, 3.0F)(random);
    options.top_k = std::uniform_int_distribution<int>(0, 60)(random);
    options.top_p = std::uniform_real_distribution<float>(0.5F, 1.0F)(random);
    options.min_p = std::uniform_real_distribution<float>(0.0F, 0.2F)(random);
    options.repetition_penalty = std::uniform_real_distribution<float>(0.5F, 2.0F)(random);
    options.frequency_penalty = std::uniform_real_distribution<float>(-1.0F, 1.0F)(random);
    options.presence_penalty = std::uniform_real_distribution<float>(-1.0F, 1.0F)(random);
    options.penalty_window = std::uniform_int_distribution<int>(0, 20)(random);
    options.seed = round;
    std::vector<int> context(30);
    for (int& token : context) token = std::uniform_int_distribution<int>(0, 79)(random);
    expect_distribution(random_logits(80, round), options, context, 20000);
  }
}

TEST(Sampler, Greedy) {
  SamplingOptions options = plain();
  options.temperature = 0.0F;
  Sampler sampler(options);
  EXPECT_EQ(sampler.sample(std::vector<float>{1.0F, 3.0F, 2.0F}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{2.0F, 3.0F, 3.0F, 3.0F}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{0.0F, -0.0F}), 0);
  EXPECT_EQ(sampler.sample(std::vector<float>{-5.0F}), 0);
}

TEST(Sampler, TiesInTopKGoToTheSmallerId) {
  SamplingOptions options = plain();
  for (const int k : {3, 300}) {
    options.top_k = k;
    Sampler sampler(options);
    const std::vector<float> logits(1000, 0.25F);
    for (int i = 0; i < 2000; ++i) EXPECT_LT(sampler.sample(logits), k);
  }
}

TEST(Sampler, TopKOfAnySizeKeepsTheLikeliest) {
  std::mt19937_64 random(5);
  for (const int size : {1, 3, 16, 17, 50, 300})
    for (const int k : {1, 2, 5, 16, 40}) {
      // Few values, so that many are equal, and some that are NaN.
      std::vector<float> logits(static_cast<std::size_t>(size));
      for (float& logit : logits)
        logit = random() % 4 == 0 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(random() % 6) * 0.1F;
      std::vector<TokenId> likeliest;
      for (TokenId token = 0; token < size; ++token)
        if (!std::isnan(logits[static_cast<std::size_t>(token)])) likeliest.push_back(token);
      std::stable_sort(likeliest.begin(), likeliest.end(), [&](TokenId a, TokenId b) {
        return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
      });
      if (likeliest.empty()) continue;
      likeliest.resize(std::min(likeliest.size(), static_cast<std::size_t>(k)));
      SamplingOptions options = plain();
      options.top_k = k;
      Sampler sampler(options);
      std::set<TokenId> drawn;
      for (int i = 0; i < 1000; ++i) drawn.insert(sampler.sample(logits));
      EXPECT_EQ(drawn, std::set<TokenId>(likeliest.begin(), likeliest.end())) << size << " tokens, k " << k;
      options.temperature = 0;
      EXPECT_EQ(Sampler(options).sample(logits), likeliest.front()) << size;
    }
}

// The rules as they are written down, token by token: selection by sorting everything, and xoshiro256** for the draw.
TokenId plain_choice(const std::vector<float>& logits, const SamplingOptions& options,
                     const std::array<std::uint64_t, 4>& random) {
  struct Choice {
    TokenId token;
    float logit;
    double weight;
  };
  std::vector<Choice> choices;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (!std::isnan(logits[i])) choices.push_back({static_cast<TokenId>(i), logits[i], 0});
  const auto sort = [&] {
    std::stable_sort(choices.begin(), choices.end(),
                     [](const Choice& a, const Choice& b) { return a.logit > b.logit; });
  };
  const auto k = static_cast<std::size_t>(options.top_k);
  if (k > 0 && k < choices.size()) {
    sort();
    choices.resize(k);
  }
  float largest = -kInf;
  for (const Choice& choice : choices) largest = std::max(largest, choice.logit);
  double total = 0;
  for (Choice& choice : choices)
    total += choice.weight =
        choice.logit == largest ? 1 : std::exp(static_cast<double>(choice.logit) - static_cast<double>(largest));
  if (options.top_p < 1) {
    sort();
    double mass = 0;
    std::size_t kept = 0;
    while (kept < choices.size() && mass < total * static_cast<double>(options.top_p)) mass += choices[kept++].weight;
    choices.resize(kept);
  }
  std::erase_if(choices, [&](const Choice& choice) { return choice.weight < static_cast<double>(options.min_p); });
  total = 0;
  for (Choice& choice : choices) {
    if (choice.logit != largest)
      choice.weight = std::exp((static_cast<double>(choice.logit) - static_cast<double>(largest)) /
                               static_cast<double>(options.temperature));
    total += choice.weight;
  }
  const double point = static_cast<double>((std::rotl(random[1] * 5, 7) * 9) >> 11) * 0x1.0p-53 * total;
  TokenId chosen = -1;
  double sum = 0;
  for (const Choice& choice : choices) {
    if (choice.weight == 0) continue;
    chosen = choice.token;
    sum += choice.weight;
    if (point < sum) break;
  }
  return chosen;
}

// The method of selection changes at 256, and where a vocabulary has no more than k tokens that are not NaN.
TEST(Sampler, ChoosesDrawByDrawWhatSortingEverythingChooses) {
  std::mt19937_64 random(6);
  for (const int size : {1, 15, 16, 17, 255, 256, 257, 258, 700})
    for (const int k : {0, 1, 15, 16, 17, 255, 256, 257, size - 1, size, size + 1})
      for (const auto& [top_p, min_p] : {std::pair(1.0F, 0.0F), {1.0F, 0.02F}, {0.7F, 0.0F}, {0.7F, 0.02F}}) {
        SamplingOptions options = plain();
        options.top_k = k;
        options.top_p = top_p;
        options.min_p = min_p;
        options.temperature = k % 2 == 0 ? 1.5F : 0.05F;
        Sampler sampler(options);
        for (int draw = 0; draw < 20; ++draw) {
          std::vector<float> logits(static_cast<std::size_t>(size));
          for (float& logit : logits) {
            const auto kind = random() % 20;
            logit = kind == 0   ? kNan
                    : kind == 1 ? -kInf
                    : kind == 2 ? -0.0F
                    : kind == 3 ? 0.0F
                                : static_cast<float>(random() % 40) * 0.1F - 1;
            if (draw == 7 && kind == 4) logit = kInf;
          }
          logits[0] = 1;
          const TokenId want = plain_choice(logits, options, sampler.random());
          ASSERT_EQ(sampler.sample(logits), want)
              << size << " tokens, k " << k << ", top-p " << top_p << ", min-p " << min_p;
        }
      }
}

TEST(Sampler, NanIsNeverChosen) {
  for (const float temperature : {0.0F, 1.0F}) {
    SamplingOptions options;
    options.temperature = temperature;
    options.presence_penalty = 1.0F;
    Sampler sampler(options);
    sampler.observe(0);
    for (int i = 0; i < 500; ++i) {
      const int token = sampler.sample(std::vector<float>{kNan, 1.0F, kNan, 1.0F, kNan});
      EXPECT_TRUE(token == 1 || token == 3) << token;
      EXPECT_EQ(sampler.sample(std::vector<float>{kNan, -kInf}), 1);
      EXPECT_EQ(sampler.sample(std::vector<float>{kNan, kNan}), -1);
    }
  }
}

TEST(Sampler, Infinities) {
  for (const float temperature : {0.0F, 0.01F, 1.0F}) {
    for (const float top_p : {0.9F, 1.0F}) {
      SamplingOptions options = plain();
      options.temperature = temperature;
      options.top_p = top_p;
      Sampler sampler(options);
      std::map<int, int> counts;
      for (int i = 0; i < 1000; ++i) {
        EXPECT_EQ(sampler.sample(std::vector<float>{-kInf, 0.0F, -kInf}), 1);
        EXPECT_EQ(sampler.sample(std::vector<float>{1.0F, 0.0F, kInf}), 2);
        ++counts[sampler.sample(std::vector<float>{kInf, 3e38F, kInf})];
        const int any = sampler.sample(std::vector<float>{-kInf, -kInf});
        EXPECT_TRUE(any == 0 || any == 1);
      }
      EXPECT_EQ(counts[1], 0);
      if (temperature > 0) {
        EXPECT_NEAR(counts[0], 500, 100);
      }
    }
  }
}

TEST(Sampler, ExtremeTemperature) {
  SamplingOptions options = plain();
  options.temperature = std::numeric_limits<float>::denorm_min();
  Sampler sampler(options);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sampler.sample(std::vector<float>{1.0F, 1.001F, 0.9F}), 1);
}

TEST(Sampler, SeedDecides) {
  const std::vector<float> logits = random_logits(1000, 10, 0.5F);
  const auto draw = [&](std::uint64_t seed) {
    SamplingOptions options = plain();
    options.seed = seed;
    Sampler sampler(options);
    std::vector<int> tokens;
    for (int i = 0; i < 50; ++i) tokens.push_back(sampler.sample(logits));
    return tokens;
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
  EXPECT_NE(draw(0), draw(1));
}

TEST(Sampler, ContinuesFromItsState) {
  std::mt19937 random(12);
  for (unsigned round = 0; round < 50; ++round) {
    SamplingOptions options = plain();
    options.seed = round;
    options.frequency_penalty = round % 3 == 0 ? 0.0F : 0.5F;
    options.penalty_window = std::uniform_int_distribution<int>(0, 20)(random);
    const std::vector<float> logits = random_logits(30, round, 0.5F);
    Sampler whole(options);
    Sampler parts(options);
    for (int i = 0; i < 60; ++i) {
      auto next = Sampler::from_state(parts.state());
      ASSERT_TRUE(next.ok()) << next.status().message();
      parts = std::move(*next);
      const TokenId token = whole.sample(logits);
      ASSERT_EQ(parts.sample(logits), token) << round << " at " << i;
      whole.observe(token);
      parts.observe(token);
    }
    EXPECT_EQ(parts.state().recent, whole.state().recent);
    EXPECT_EQ(parts.state().random, whole.state().random);
  }
}

TEST(Sampler, CopiesDrawTheSameUntilReseeded) {
  const std::vector<float> logits = random_logits(1000, 13, 0.5F);
  const auto draw = [&](Sampler sampler) {
    std::vector<int> tokens;
    for (int i = 0; i < 20; ++i) tokens.push_back(sampler.sample(logits));
    return tokens;
  };
  Sampler one(plain());
  Sampler other = one;
  EXPECT_EQ(draw(one), draw(other));
  other.reseed(2);
  EXPECT_NE(draw(one), draw(other));
  SamplingOptions second = plain();
  second.seed = 2;
  EXPECT_EQ(draw(other), draw(Sampler(second)));
}

TEST(Sampler, DamagedStatesAreRefused) {
  SamplingOptions options = plain();
  options.presence_penalty = 1;
  options.penalty_window = 3;
  Sampler sampler(options);
  for (const int token : {5, 6, 7, 8}) sampler.observe(token);
  const SamplerState state = sampler.state();
  EXPECT_EQ(state.recent, (std::vector<TokenId>{6, 7, 8})) << "oldest first";
  ASSERT_TRUE(Sampler::from_state(state).ok());
  const auto code = [&](const auto& damage) {
    SamplerState damaged = state;
    damage(damaged);
    return Sampler::from_state(damaged).status().code();
  };
  EXPECT_EQ(code([](SamplerState& s) { s.options.temperature = -1; }), StatusCode::kDataLoss);
  EXPECT_EQ(code([](SamplerState& s) { s.options.penalty_window = 2; }), StatusCode::kDataLoss);
  EXPECT_EQ(code([](SamplerState& s) { s.options.presence_penalty = 0; }), StatusCode::kDataLoss);
  EXPECT_EQ(code([](SamplerState& s) { s.random = {}; }), StatusCode::kDataLoss);
}

// The first outputs of splitmix64(1234567), as published with it, seed xoshiro256**; its first output follows from the
// second of them by the generator's definition: rotl(s1 * 5, 7) * 9.
TEST(Sampler, GeneratorIsTheNamedOne) {
  const std::uint64_t s1 = 3203168211198807973U;
  const std::uint64_t x = s1 * 5;
  const std::uint64_t output = ((x << 7) | (x >> 57)) * 9;
  const double uniform = static_cast<double>(output >> 11) / 9007199254740992.0;
  SamplingOptions options = plain();
  options.seed = 1234567;
  constexpr int kTokens = 4096;
  EXPECT_EQ(Sampler(options).sample(std::vector<float>(kTokens, 0.0F)), static_cast<int>(uniform * kTokens));
}

TEST(Sampler, LargeVocabulariesTakeTimeByTheirSize) {
  constexpr int kTimes = 32;
  const std::vector<float> logits = random_logits(128 * 1024, 11);
  for (const int k : {40, 0}) {
    SamplingOptions options;
    options.top_k = k;
    Sampler sampler(options);
    const auto sample = [&](std::size_t size) {
      for (int i = 0; i < 10; ++i) EXPECT_GE(sampler.sample(std::span(logits).first(size)), 0);
    };
    test::expect_linear(
        kTimes, [&] { sample(logits.size() / kTimes); }, [&] { sample(logits.size()); });
  }
}

TEST(Validate, NamesOptionValueAndRange) {
  EXPECT_TRUE(validate(SamplingOptions()).ok());
  const auto message = [](auto member, auto value) {
    SamplingOptions options;
    options.*member = value;
    const Status status = validate(options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << value;
    return status.message();
  };
  using S = SamplingOptions;
  EXPECT_EQ(message(&S::temperature, -1.0F), "temperature is -1; it must be at least 0 and at most 100");
  EXPECT_EQ(message(&S::top_k, -3), "top_k is -3; it must be at least 0, or -1 for all");
  EXPECT_EQ(message(&S::top_p, 0.0F), "top_p is 0; it must be greater than 0 and at most 1");
  EXPECT_EQ(message(&S::min_p, 1.5F), "min_p is 1.5; it must be at least 0 and at most 1");
  EXPECT_EQ(message(&S::repetition_penalty, 0.0F), "repetition_penalty is 0; it must be greater than 0 and at most 10");
  EXPECT_EQ(message(&S::frequency_penalty, 11.0F), "frequency_penalty is 11; it must be at least -10 and at most 10");
  EXPECT_EQ(message(&S::presence_penalty, -10.5F), "presence_penalty is -10.5; it must be at least -10 and at most 10");
  EXPECT_EQ(message(&S::penalty_window, -1), "penalty_window is -1; it must be at least 0 and at most 65536");
  for (const auto member :
       {&S::temperature, &S::top_p, &S::min_p, &S::repetition_penalty, &S::frequency_penalty, &S::presence_penalty}) {
    message(member, kNan);
    message(member, kInf);
    message(member, -kInf);
  }
}

TEST(Validate, AcceptsTheEndsOfTheRanges) {
  SamplingOptions options;
  options.temperature = 100.0F;
  options.top_p = 1.0F;
  options.min_p = 1.0F;
  options.repetition_penalty = 10.0F;
  options.frequency_penalty = -10.0F;
  options.presence_penalty = 10.0F;
  options.penalty_window = kMaxPenaltyWindow;
  options.top_k = std::numeric_limits<int>::max();
  ASSERT_TRUE(validate(options).ok());
  Sampler sampler(options);
  sampler.observe(0);
  EXPECT_EQ(sampler.sample(std::vector<float>{1.0F}), 0);
}

}  // namespace
}  // namespace kvasir
