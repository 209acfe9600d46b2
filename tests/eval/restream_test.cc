// Restream on a model of known recall: how far back it predicts well, and the figures against separately computed
// logits.
#include "eval/restream.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/engine_fixture.h"
#include "support/induction_model.h"

namespace kvasir::test {
namespace {

std::vector<TokenId> text_of(int count) {
  std::vector<TokenId> tokens = random_tokens(count, 320, 4);
  for (TokenId& token : tokens) token = token == 1 ? 2 : token;
  tokens.front() = 1;
  return tokens;
}

TEST(Restream, ReachesAsFarAsTheCache) {
  const TemporaryFile file(make_induction_model({.match = 2}));
  const auto model = load(file.path(), {});
  ASSERT_NE(model, nullptr);
  const auto text = text_of(1200);
  const std::vector<std::int64_t> distances = {50, 150, 400, 1100};
  const auto run = [&](const std::string& policy) {
    auto result = evaluate_restream(model, text, {.policy = policy, .distances = distances}, {});
    EXPECT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->points.size(), distances.size());
    for (std::size_t i = 0; i < distances.size(); ++i) {
      EXPECT_EQ(result->points[i].distance, distances[i]);
      EXPECT_EQ(result->points[i].tokens, distances[i] - 1);
      EXPECT_GT(result->points[i].first_ppl, 100);
    }
    return *result;
  };
  const RestreamResult full = run("full");
  for (const RestreamPoint& point : full.points) EXPECT_LT(point.ppl, point.distance > 100 ? 1.1 : 1.3);
  EXPECT_EQ(full.kept_max, 2300);

  const RestreamResult window = run("window:size=200");
  EXPECT_LT(window.points[0].ppl, 2);
  EXPECT_LT(window.points[1].ppl, 1.3);
  EXPECT_GT(window.points[2].ppl, 100);
  EXPECT_GT(window.points[3].ppl, 100);
  EXPECT_LT(window.kv_bytes_peak, full.kv_bytes_peak / 2);

  const RestreamResult streaming = run("streaming:sinks=4,window=500,realign=rotate");
  EXPECT_LT(streaming.points[2].ppl, 1.1);
  EXPECT_GT(streaming.points[3].ppl, 100);
}

double mean_nll(std::span<const float> logits, std::span<const TokenId> tokens, std::size_t first_target) {
  double sum = 0;
  for (std::size_t t = first_target; t < tokens.size(); ++t) {
    const auto row = logits.subspan((t - 1) * 320, 320);
    double exponentials = 0;
    for (const float logit : row) exponentials += std::exp(static_cast<double>(logit));
    sum += std::log(exponentials) - static_cast<double>(row[static_cast<std::size_t>(tokens[t])]);
  }
  return sum / static_cast<double>(tokens.size() - first_target);
}

TEST(Restream, AgreesWithTheLogits) {
  const TemporaryFile file(make_random_model({.context = 1024}));
  const auto model = load(file.path(), {.threads = 1, .kv_type = "f32"});
  ASSERT_NE(model, nullptr);
  const auto text = text_of(300);
  for (const std::string policy : {"full", "window:size=70", "streaming:sinks=4,window=60,every=8,realign=rotate",
                                   "tova:budget=60,heads=independent", "h2o:budget=60,recent=20"})
    for (const int chunk : {1, 7, 256}) {
      // To policies by table the passes matter, and those of the whole text cut it elsewhere.
      const bool by_table = policy.find("budget") != std::string::npos;
      if (by_table && chunk != 1) continue;
      SCOPED_TRACE(policy);
      const auto result =
          evaluate_restream(model, text, {.policy = policy, .distances = {100, 2, 40}, .chunk = chunk}, {});
      ASSERT_TRUE(result.ok()) << result.status().message();
      for (const RestreamPoint& point : result->points) {
        const auto distance = static_cast<std::size_t>(point.distance);
        std::vector<TokenId> twice = text;
        twice.insert(twice.end(), text.end() - point.distance, text.end());
        const std::vector<float> logits = all_logits(*new_runner(model, policy), twice, by_table ? 1 : 50);
        EXPECT_NEAR(point.first_nll, mean_nll(logits, text, text.size() - distance + 1), 1e-6);
        EXPECT_NEAR(point.nll, mean_nll(logits, twice, text.size() + 1), 1e-6);
        EXPECT_NE(point.nll, point.first_nll);
        EXPECT_DOUBLE_EQ(point.ppl, std::exp(point.nll));
        EXPECT_DOUBLE_EQ(point.first_ppl, std::exp(point.first_nll));
      }
    }
}

TEST(Restream, RefusesAndStops) {
  const TemporaryFile file(make_random_model({}));
  const auto model = load(file.path(), {.threads = 1});
  const auto text = text_of(100);
  for (const RestreamOptions& options :
       {RestreamOptions{.policy = "nope", .distances = {10}}, RestreamOptions{.policy = "recompute", .distances = {10}},
        RestreamOptions{}, RestreamOptions{.distances = {1}}, RestreamOptions{.distances = {-4}},
        RestreamOptions{.distances = {10, 100}}, RestreamOptions{.distances = {10}, .chunk = -1}})
    EXPECT_EQ(evaluate_restream(model, text, options, {}).status().code(), StatusCode::kInvalidArgument)
        << options.policy;
  EXPECT_TRUE(evaluate_restream(model, text, {.distances = {99}}, {}).ok());
  std::vector<std::int64_t> done;
  const RestreamOptions options{.distances = {10, 20}, .chunk = 50};
  const auto never = [&](std::int64_t now, std::int64_t all) {
    EXPECT_EQ(all, 130);
    done.push_back(now);
    return true;
  };
  EXPECT_TRUE(evaluate_restream(model, text, options, never).ok());
  EXPECT_EQ(done, (std::vector<std::int64_t>{50, 100, 110, 130}));
  for (std::size_t stop = 1; stop <= 4; ++stop) {
    std::size_t calls = 0;
    const auto result =
        evaluate_restream(model, text, options, [&](std::int64_t, std::int64_t) { return ++calls < stop; });
    EXPECT_EQ(result.status().code(), StatusCode::kCancelled) << stop;
    EXPECT_EQ(calls, stop);
  }
}

}  // namespace
}  // namespace kvasir::test
