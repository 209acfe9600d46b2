// Perplexity against the model in double precision, whatever the policy.
#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/engine_fixture.h"

namespace kvasir::test {
namespace {

double nll(const std::vector<double>& logits, TokenId target) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  return std::log(sum) + largest - logits[static_cast<std::size_t>(target)];
}

class Perplexity : public ::testing::Test {
 protected:
  void SetUp() override {
    bytes_ = make_random_model({});
    file_ = std::make_unique<TemporaryFile>(bytes_);
    auto parsed = gguf::File::parse(bytes_);
    ASSERT_TRUE(parsed.ok());
    reference_ = std::make_unique<ReferenceModel>(*parsed);
    model_ = load(file_->path(), {.threads = 1, .kv_type = "f32"});
    tokens_ = random_tokens(300, 320, 9);
    tokens_.front() = 1;
  }

  PerplexityResult evaluate(const PerplexityOptions& options) {
    const auto results = evaluate_perplexity(model_, tokens_, options, {});
    EXPECT_TRUE(results.ok()) << options.policies.front() << ": " << results.status().message();
    if (!results.ok()) return {};
    EXPECT_EQ(results->size(), 1u);
    EXPECT_DOUBLE_EQ(results->front().ppl, std::exp(results->front().nll));
    EXPECT_FALSE(results->front().full.has_value());
    return results->front();
  }

  // Sum of what rows [first, size - 1) of a stream cost.
  double reference_sum(const std::vector<TokenId>& tokens, const std::vector<RowView>& views, std::size_t first) {
    const auto logits = reference_->logits(std::vector<int>(tokens.begin(), tokens.end()), views);
    double sum = 0;
    for (std::size_t t = first; t + 1 < tokens.size(); ++t) sum += nll(logits[t], tokens[t + 1]);
    return sum;
  }

  void expect_near(const PerplexityResult& result, double sum, int count) {
    EXPECT_EQ(result.tokens, count);
    const double ppl = std::exp(sum / count);
    EXPECT_NEAR(result.ppl, ppl, 1e-4 * ppl) << result.policy;
  }

  std::vector<std::byte> bytes_;
  std::unique_ptr<TemporaryFile> file_;
  std::unique_ptr<ReferenceModel> reference_;
  std::shared_ptr<LoadedModel> model_;
  std::vector<TokenId> tokens_;
};

TEST_F(Perplexity, FullEqualsTheReference) {
  const double sum = reference_sum(tokens_, full_views(300), 0);
  for (const int chunk : {1, 7, 512}) expect_near(evaluate({.policies = {"full"}, .chunk = chunk}), sum, 299);
  expect_near(evaluate({.policies = {"full"}, .first_scored = 100}), reference_sum(tokens_, full_views(300), 100), 199);
  expect_near(evaluate({.policies = {"full"}, .first_scored = 298}), reference_sum(tokens_, full_views(300), 298), 1);
}

TEST_F(Perplexity, StreamingAndWindowEqualTheReference) {
  const double full = reference_sum(tokens_, full_views(300), 0);
  for (const int every : {1, 8}) {
    const double sum = reference_sum(tokens_, streaming_views(300, 4, 28, every), 0);
    EXPECT_GT(std::fabs(sum - full), 3e-3 * full) << "forgetting changes nothing here";
    for (const int chunk : {1, 64}) {
      const PerplexityResult result =
          evaluate({.policies = {"streaming:sinks=4,window=28,every=" + std::to_string(every)}, .chunk = chunk});
      expect_near(result, sum, 299);
      if (chunk == 1) {
        EXPECT_EQ(result.kept_max, 32 + every);
      }
    }
  }
  expect_near(evaluate({.policies = {"window:size=20"}}), reference_sum(tokens_, window_views(300, 20), 0), 299);
}

TEST_F(Perplexity, WindowsBeginWithBosAndScoreTheirSecondHalvesOrAll) {
  for (const int window : {4, 32, 75, 100}) {
    double sum = 0;
    int count = 0;
    for (int begin = 0; begin + window <= 300; begin += window) {
      std::vector<TokenId> part(tokens_.begin() + begin, tokens_.begin() + begin + window);
      part.front() = 1;
      sum += reference_sum(part, full_views(window), static_cast<std::size_t>(window / 2));
      count += window - window / 2 - 1;
    }
    EXPECT_EQ(count, 300 / window * (window - window / 2 - 1));
    double whole = 0;
    for (int begin = 0; begin + window <= 300; begin += window) {
      std::vector<TokenId> part(tokens_.begin() + begin, tokens_.begin() + begin + window);
      part.front() = 1;
      whole += reference_sum(part, full_views(window), 0);
    }
    expect_near(evaluate({.window = window, .whole_windows = true, .chunk = 512}), whole, 300 / window * (window - 1));
    for (const int chunk : {1, 512}) {
      const PerplexityResult result = evaluate({.policies = {"full"}, .window = window, .chunk = chunk});
      expect_near(result, sum, count);
      EXPECT_EQ(result.kept_max, window);
    }
  }
}

TEST_F(Perplexity, RecomputeEqualsTheReferenceOnTheLastTokens) {
  double sum = 0;
  for (int t = 0; t + 1 < 300; ++t) {
    const int begin = std::max(0, t + 1 - 24);
    const std::vector<int> part(tokens_.begin() + begin, tokens_.begin() + t + 1);
    sum += nll(reference_->logits(part).back(), tokens_[static_cast<std::size_t>(t) + 1]);
  }
  const PerplexityResult all = evaluate({.policies = {"recompute:size=24"}});
  expect_near(all, sum, 299);
  EXPECT_EQ(all.kept_max, 24);
  EXPECT_EQ(all.policy, "recompute:size=24");

  sum = 0;
  int count = 0;
  for (int t = 50; t + 1 < 300; t += 7, ++count) {
    const std::vector<int> part(tokens_.begin() + std::max(0, t + 1 - 24), tokens_.begin() + t + 1);
    sum += nll(reference_->logits(part).back(), tokens_[static_cast<std::size_t>(t) + 1]);
  }
  expect_near(evaluate({.policies = {"recompute:size=24,stride=7"}, .first_scored = 50}), sum, count);
  // One that covers the text is the full cache.
  EXPECT_NEAR(evaluate({.policies = {"recompute:size=16777216"}}).nll, evaluate({.policies = {"full"}}).nll, 1e-5);
}

// The mean of what the scored rows see, whatever the pass that a row is in.
TEST_F(Perplexity, KeptIsWhatTheRowsSee) {
  for (const int chunk : {0, 1, 7, 256}) {
    EXPECT_EQ(evaluate({.policies = {"full"}, .chunk = chunk}).kept_mean, 150) << "rows 0 to 298 see 1 to 299 tokens";
    // Rows see every token until `every` are more than 64, and 64 again behind that row.
    double sum = 0;
    for (int row = 0, held = 0; row < 299; ++row) {
      sum += ++held;
      if (held >= 64 + 16) held = 64;
    }
    EXPECT_NEAR(evaluate({.policies = {"streaming:sinks=4,window=60,every=16"}, .chunk = chunk}).kept_mean, sum / 299,
                1e-9)
        << chunk;
  }
  // A policy that drops when a chunk ends has shown its rows the budget and the chunk up to them: 300 is 42 chunks
  // and 6.
  double sum = 0;
  for (int row = 0; row < 299; ++row) sum += std::min(40, row / 7 * 7) + row % 7 + 1;
  EXPECT_NEAR(evaluate({.policies = {"h2o:budget=40,recent=20"}, .chunk = 7}).kept_mean, sum / 299, 1e-9);
}

// A prompt's end is where a policy that acts there acts; what keeps everything does not notice.
TEST_F(Perplexity, APromptGoesBeforeWhatIsScored) {
  const auto of = [&](const char* policy, int chunk, std::int64_t prefill) {
    return evaluate({.policies = {policy}, .chunk = chunk, .prefill = prefill});
  };
  const double sum = reference_sum(tokens_, full_views(300), 200);
  for (const int chunk : {0, 1, 7}) {
    expect_near(of("full", chunk, 200), sum, 99);
    expect_near(of("snapkv:budget=300,window=16", chunk, 200), sum, 99);
    const PerplexityResult acted = of("snapkv:budget=40,window=16", chunk, 200);
    EXPECT_EQ(acted.tokens, 99);
    EXPECT_EQ(acted.timed, 100) << "passes behind the prompt, the last one's row included";
    EXPECT_GT(std::abs(acted.nll - sum / 99), 1e-3) << chunk;
    EXPECT_NEAR(acted.kept_mean, 40 + 100 / 2.0, 1) << "of the budget, and what was generated behind it";
    EXPECT_EQ(acted.seen_least, 140);
  }
  // Without a prompt it never acts.
  expect_near(of("snapkv:budget=40,window=16", 1, 0), reference_sum(tokens_, full_views(300), 0), 299);
  // Of each window.
  const PerplexityResult windows =
      evaluate({.policies = {"snapkv:budget=40,window=16"}, .window = 150, .chunk = 0, .prefill = 100});
  EXPECT_EQ(windows.tokens, 2 * 49);
  EXPECT_EQ(windows.seen_least, 90);
}

TEST_F(Perplexity, RefusesWhatCannotBeScored) {
  for (const PerplexityOptions& options : std::vector<PerplexityOptions>{
           {.policies = {}},
           {.policies = {"full", "nope"}},
           {.chunk = -1},
           {.chunk = 4097},
           {.window = 2},
           {.window = -1},
           {.window = 301},
           {.whole_windows = true},
           {.first_scored = 299},
           {.first_scored = -1},
           {.window = 100, .first_scored = 5},
           {.policies = {"recompute:size=8"}, .window = 100},
           {.policies = {"recompute:stride=0"}},
           {.bins = -1},
           {.bins = 300},
           {.first_scored = 200, .bins = 100},
           {.window = 100, .bins = 50},
           {.bins = kMostBins + 1, .bins_over = 100000},
           {.prefill = -1},
           {.prefill = 299},
           {.window = 100, .prefill = 99},
       }) {
    const auto result = evaluate_perplexity(model_, tokens_, options, {});
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << result.status().message();
  }
  int calls = 0;
  const auto stopped =
      evaluate_perplexity(model_, tokens_, {}, [&](std::int64_t, std::int64_t) { return ++calls < 5; });
  EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace kvasir::test
