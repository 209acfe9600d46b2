// A promise of quality on a text, beside fixed budgets.
#include "eval/promise.h"

#include <gtest/gtest.h>

#include "eval/perplexity.h"
#include "quality/divergence.h"
#include "support/engine_fixture.h"

namespace kvasir::test {
namespace {

std::shared_ptr<LoadedModel> promise_model() {
  RandomModelSpec spec;
  spec.output_gain = 3;
  static const TemporaryFile file(make_random_model(spec));
  return load(file.path());
}

PromiseOptions promise_options(double kl) {
  PromiseOptions options;
  options.policy = "streaming:sinks=4,window=60";
  options.quality = {.kl = kl, .every = 16, .stride = 2};
  options.prompt = 40;
  return options;
}

const auto go_on = [](std::int64_t, std::int64_t) { return true; };

// Returns the logits of the last row of a text that a policy reads as a prompt, token by token.
std::vector<float> last_row(const std::shared_ptr<LoadedModel>& model, const std::string& policy,
                            std::span<const TokenId> text) {
  const auto runner = new_runner(model, policy);
  const std::vector<float> logits = all_logits(*runner, text, 1);
  return {logits.end() - model->config.vocabulary, logits.end()};
}

TEST(PromiseOfAText, FixedBudgetsHaveTheDistanceOfEvalPpl) {
  const auto model = promise_model();
  const std::vector<TokenId> tokens = random_tokens(240, model->config.vocabulary, 3);
  PromiseOptions options = promise_options(1000);
  options.quality.least = 60;  // the promise keeps its first budget
  options.fixed = {32, 60, 128};
  const Result<PromiseResult> result = evaluate_promise(model, tokens, options, go_on);
  ASSERT_TRUE(result.ok()) << result.status().message();
  PerplexityOptions perplexity;
  perplexity.policies = {"streaming:sinks=4,window=32", "streaming:sinks=4,window=60", "streaming:sinks=4,window=128"};
  perplexity.chunk = 0;
  perplexity.prefill = 40;
  perplexity.compare_full = true;
  const auto scored = evaluate_perplexity(model, tokens, perplexity, go_on);
  ASSERT_TRUE(scored.ok()) << scored.status().message();
  ASSERT_EQ(result->fixed.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    // The promise also counts the prompt's last row, from which the policy has dropped nothing if its budget holds it.
    const double rows = static_cast<double>(result->fixed[i].tokens);
    const std::span<const TokenId> prompt = std::span(tokens).first(40);
    const double last =
        compare_logits(last_row(model, "full", prompt), last_row(model, perplexity.policies[i], prompt)).kld;
    EXPECT_EQ(last > 1e-6, i == 0) << last;
    EXPECT_NEAR(result->fixed[i].kl_mean * (rows + 1), (*scored)[i].full->kld_mean * rows + last, 1e-5) << i;
    EXPECT_NEAR(result->fixed[i].kept_mean, (*scored)[i].kept_mean, 1e-6) << i;
  }
  EXPECT_GT(result->fixed[0].kl_mean, result->fixed[2].kl_mean);
  EXPECT_EQ(result->promise.kl_mean, result->fixed[1].kl_mean) << "a promise that changes nothing costs quality";
  ASSERT_TRUE(result->equal_budget);
  EXPECT_NEAR(*result->equal_budget, 60, 1e-3);
}

TEST(PromiseOfAText, WhatShadowsMeasureIsPartOfWhatEveryTokenShows) {
  const auto model = promise_model();
  const std::vector<TokenId> tokens = random_tokens(250, model->config.vocabulary, 4);
  PromiseOptions options = promise_options(0.02);
  options.quality.stride = 1;
  const Result<PromiseResult> result = evaluate_promise(model, tokens, options, go_on);
  ASSERT_TRUE(result.ok()) << result.status().message();
  const QualityReport& quality = *result->promise.quality;
  EXPECT_GT(quality.budgets.size(), 1u) << "the budget never moves: the test shows little";
  EXPECT_EQ(quality.checks, 13);
  EXPECT_EQ(quality.compared, 13 * 16 + 1);
  EXPECT_EQ(result->promise.tokens, 209);
  // All tokens are compared but those behind the last check.
  EXPECT_EQ(quality.unchecked, 1);
  const double all = result->promise.kl_mean * 210, seen = quality.kl_mean * static_cast<double>(quality.compared);
  EXPECT_GE(all, seen - 1e-9);
  EXPECT_LE(all - seen, quality.kl_max * 16);
  EXPECT_EQ(quality.shadow_tokens, 40 + 13 * 16);
}

TEST(PromiseOfAText, MistakesAreSaid) {
  const auto model = promise_model();
  const std::vector<TokenId> tokens = random_tokens(100, model->config.vocabulary, 5);
  PromiseOptions options = promise_options(0.02);
  options.prompt = 100;
  EXPECT_EQ(evaluate_promise(model, tokens, options, go_on).status().code(), StatusCode::kInvalidArgument);
  options.prompt = 40;
  options.policy = "full";
  EXPECT_EQ(evaluate_promise(model, tokens, options, go_on).status().code(), StatusCode::kInvalidArgument);
  const std::vector<TokenId> longer = random_tokens(300, model->config.vocabulary, 5);
  EXPECT_EQ(evaluate_promise(model, longer, promise_options(0.02), go_on).status().code(),
            StatusCode::kInvalidArgument);
  const auto stop = [](std::int64_t done, std::int64_t) { return done < 60; };
  EXPECT_EQ(evaluate_promise(model, tokens, promise_options(0.02), stop).status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace kvasir::test
