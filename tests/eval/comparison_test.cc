// eval ppl beyond perplexity: divergence from the full cache, kept tokens, curves, pooled texts. What is expected comes
// from the logits of sequences that ran alone, or from counting.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/system_memory.h"
#include "eval/perplexity.h"
#include "support/engine_fixture.h"
#include "support/originals.h"

namespace kvasir::test {
namespace {

constexpr int kVocabulary = 320;

std::vector<double> probabilities(std::span<const float> logits) {
  std::vector<double> p(logits.begin(), logits.end());
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value);
  for (double& value : p) value /= sum;
  return p;
}

// The logits after each token of a sequence that is read alone.
class Alone {
 public:
  Alone(const std::shared_ptr<LoadedModel>& model, const std::string& policy, std::span<const TokenId> tokens,
        int chunk) {
    const auto runner = new_runner(model, policy);
    const auto source = chunk == 1 ? SequenceRunner::Source::kGenerated : SequenceRunner::Source::kPrompt;
    const Status status = runner->feed(
        tokens, chunk, SequenceRunner::Logits::kAll,
        [&](std::int64_t, int, std::span<const float> logits) {
          for (std::size_t at = 0; at < logits.size(); at += kVocabulary)
            rows.push_back(probabilities(logits.subspan(at, kVocabulary)));
          return true;
        },
        source);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(rows.size(), tokens.size());
  }
  std::vector<std::vector<double>> rows;  // [tokens][vocabulary]: probabilities
};

struct Expected {
  std::vector<double> nll;  // per token scored
  std::vector<double> kld;
  double agree = 0;
};

// Rows [first, size - 1), each against the token behind it.
Expected expect(const Alone& full, const Alone& other, std::span<const TokenId> tokens, std::size_t first = 0) {
  Expected made;
  for (std::size_t t = first; t + 1 < tokens.size(); ++t) {
    const std::vector<double>& p = full.rows[t];
    const std::vector<double>& q = other.rows[t];
    double kld = 0;
    for (std::size_t v = 0; v < p.size(); ++v) kld += p[v] * std::log(p[v] / q[v]);
    made.kld.push_back(kld);
    made.nll.push_back(-std::log(q[static_cast<std::size_t>(tokens[t + 1])]));
    made.agree += std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin() ? 1 : 0;
  }
  made.agree /= static_cast<double>(made.kld.size());
  return made;
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The smallest value that at least 99% do not exceed, give or take one in rank.
void expect_p99(double p99, std::vector<double> values) {
  std::ranges::sort(values);
  const auto at = static_cast<std::size_t>(0.99 * static_cast<double>(values.size()));
  EXPECT_GE(p99, values[at - 1] - 1e-9);
  EXPECT_LE(p99, values[std::min(at + 1, values.size() - 1)] + 1e-9);
}

void expect_near(const PerplexityResult& result, const Expected& expected) {
  SCOPED_TRACE(result.policy);
  EXPECT_EQ(result.tokens, static_cast<std::int64_t>(expected.nll.size()));
  EXPECT_NEAR(result.nll, mean(expected.nll), 1e-9);
  ASSERT_TRUE(result.full.has_value());
  EXPECT_NEAR(result.full->kld_mean, mean(expected.kld), 1e-9);
  expect_p99(result.full->kld_p99, expected.kld);
  EXPECT_EQ(result.full->top1_agree, expected.agree);
}

class Comparison : public ::testing::Test {
 protected:
  void SetUp() override {
    file_ = std::make_unique<TemporaryFile>(make_random_model({.context = 1024}));
    f16_ = load(file_->path(), {.threads = 1, .kv_type = "f16"});
    f32_ = load(file_->path(), {.threads = 1, .kv_type = "f32"});
    tokens_ = random_tokens(700, kVocabulary, 11);
    tokens_.front() = 1;
  }
  std::span<const TokenId> text(std::size_t tokens) const { return std::span(tokens_).first(tokens); }

  static std::vector<PerplexityResult> evaluate(const std::shared_ptr<LoadedModel>& model,
                                                std::span<const TokenId> tokens, const PerplexityOptions& options) {
    auto results = evaluate_perplexity(model, tokens, options, {});
    EXPECT_TRUE(results.ok()) << results.status().message();
    if (!results.ok()) return std::vector<PerplexityResult>(options.policies.size());
    EXPECT_EQ(results->size(), options.policies.size() * std::max<std::size_t>(options.kv_types.size(), 1));
    return std::move(*results);
  }

  std::unique_ptr<TemporaryFile> file_;
  std::shared_ptr<LoadedModel> f16_;
  std::shared_ptr<LoadedModel> f32_;
  std::vector<TokenId> tokens_;
};

const std::vector<std::string> kPolicies = {"streaming:sinks=4,window=28",
                                            "full",
                                            "h2o:budget=48,recent=16",
                                            "tova:budget=48",
                                            "lethe:tau=1.5,recent=0.1,start=40,max=100",
                                            "random:budget=48",
                                            "streaming:sinks=4,window=28,every=8",
                                            "window:size=100000"};

TEST_F(Comparison, DivergenceIsThatOfSequencesAlone) {
  for (const int chunk : {1, 24}) {
    SCOPED_TRACE(chunk);
    const auto results = evaluate(f16_, text(200), {.policies = kPolicies, .chunk = chunk, .compare_full = true});
    const Alone full(f16_, "full", text(200), chunk);
    for (std::size_t i = 0; i < kPolicies.size(); ++i)
      expect_near(results[i], expect(full, Alone(f16_, kPolicies[i], text(200), chunk), text(200)));
    EXPECT_GT(results[0].full->kld_mean, 1e-3) << "forgetting changes nothing here";
    EXPECT_LT(results[0].full->top1_agree, 0.99);
    // Against itself, and by another policy that has dropped nothing.
    for (const std::size_t same : {1, 7}) {
      EXPECT_EQ(results[same].full->kld_mean, 0);
      EXPECT_EQ(results[same].full->kld_p99, 0);
      EXPECT_EQ(results[same].full->top1_agree, 1);
    }
  }
}

TEST_F(Comparison, TheMeasureIsTheF16CacheWhateverThePages) {
  const auto results = evaluate(f32_, text(200), {.policies = {"full", "tova:budget=48"}, .compare_full = true});
  const Alone full(f16_, "full", text(200), 1);
  expect_near(results[0], expect(full, Alone(f32_, "full", text(200), 1), text(200)));
  expect_near(results[1], expect(full, Alone(f32_, "tova:budget=48", text(200), 1), text(200)));
  EXPECT_EQ(results[0].codec, "f32");
  EXPECT_GT(results[0].full->kld_mean, 0);
  EXPECT_LT(results[0].full->kld_mean, 1e-5);
}

// The measure is the same cache, be it made for the purpose or one of the runs: of latent pages, and with the angles
// for the text's length whatever those of the runs.
TEST_F(Comparison, TheMeasureIsTheFullF16RunOfEveryModel) {
  for (const auto& [name, type] : {std::pair("deepseek_v2", "q8"), std::pair("phi3_long", "q8,rope=long"),
                                   std::pair("phi3_long", "f16,rope=long"), std::pair("gemma4", "q4")}) {
    SCOPED_TRACE(fmt::format("{} {}", name, type));
    const std::string file = original(name);
    const auto model = load(file, {.threads = 1, .kv_type = type});
    const auto tokens = random_tokens(60, model->config.vocabulary, 3);
    const auto alone = evaluate(model, tokens, {.kv_types = {type}, .compare_full = true});
    const auto beside = evaluate(load(file, {.threads = 1}), tokens, {.kv_types = {"f16", type}, .compare_full = true});
    EXPECT_EQ(beside[0].full->kld_mean, 0);
    EXPECT_GT(beside[1].full->kld_mean, 0);
    EXPECT_EQ(alone[0].full->kld_mean, beside[1].full->kld_mean);
    EXPECT_EQ(alone[0].full->top1_agree, beside[1].full->top1_agree);
  }
}

// Each policy on each codec, as on a model of that codec.
TEST_F(Comparison, CodecsRunBesideEachOther) {
  const std::vector<std::string> policies = {"full", "random:budget=48"};
  const std::vector<std::string> codecs = {"f16", "q4", "k=q8,v=f16,recent=40"};
  const auto together =
      evaluate(f16_, text(300), {.policies = policies, .kv_types = codecs, .chunk = 24, .compare_full = true});
  const auto apart = evaluate(f32_, text(300), {.policies = policies, .kv_types = codecs, .chunk = 24});
  for (std::size_t i = 0; i < together.size(); ++i) {
    const std::string& policy = policies[i / 3];
    const std::string& codec = codecs[i % 3];
    const auto model = load(file_->path(), {.threads = 1, .kv_type = codec});
    expect_near(together[i],
                expect(Alone(f16_, "full", text(300), 24), Alone(model, policy, text(300), 24), text(300)));
    for (const PerplexityResult& result : {together[i], apart[i]}) {
      EXPECT_EQ(result.codec, codec);
      EXPECT_EQ(result.policy.substr(0, policy.find(':')), policy.substr(0, policy.find(':')));
      EXPECT_EQ(result.nll, together[i].nll);
      EXPECT_EQ(result.kv_bytes_peak, together[i].kv_bytes_peak);
      // Whole pages behind the newest are encoded, and without holes once.
      EXPECT_EQ(result.encodings_max > 0, codec != "f16");
      EXPECT_EQ(result.encodings_mean > 1, policy != "full" && codec != "f16");
    }
  }
  EXPECT_LT(together[1].kv_bytes_peak, together[0].kv_bytes_peak);
  EXPECT_GT(together[1].full->kld_mean, 10 * together[2].full->kld_mean);
}

// Passes of different sizes: the policies' own, those that streaming cuts short, and single rows here and there.
TEST_F(Comparison, PassesNeedNotFallTogether) {
  const std::vector<std::string> policies = {"h2o:budget=64,recent=32", "streaming:sinks=4,window=60,realign=rotate"};
  const auto results = evaluate(f16_, text(700), {.policies = policies, .chunk = 0, .compare_full = true});
  const Alone full(f16_, "full", text(700), 512);
  for (std::size_t i = 0; i < policies.size(); ++i)
    expect_near(results[i], expect(full, Alone(f16_, policies[i], text(700), 0), text(700)));

  const auto some =
      evaluate(f16_, text(300), {.policies = {"recompute:size=24,stride=7"}, .first_scored = 50, .compare_full = true});
  Expected expected;
  for (std::size_t t = 50; t + 1 < 300; t += 7) {
    const std::span<const TokenId> last = text(t + 1).last(24);
    Alone again(f16_, "full", last, 512);
    Alone at(full);
    at.rows = {full.rows[t]};
    again.rows = {again.rows.back()};
    const std::vector<TokenId> target = {0, tokens_[t + 1]};
    const Expected one = expect(at, again, target);
    expected.nll.push_back(one.nll.front());
    expected.kld.push_back(one.kld.front());
    expected.agree += one.agree;
  }
  expected.agree /= static_cast<double>(expected.kld.size());
  ASSERT_EQ(expected.kld.size(), 36u);
  expect_near(some.front(), expected);
}

TEST_F(Comparison, ReadingSideBySideChangesNothing) {
  for (const bool windows : {false, true}) {
    PerplexityOptions options{.policies = kPolicies, .window = windows ? 90 : 0, .chunk = windows ? 40 : 1};
    const auto alone = evaluate(f16_, text(200), options);
    options.compare_full = true;
    const auto together = evaluate(f16_, text(200), options);
    for (std::size_t i = 0; i < kPolicies.size(); ++i) {
      SCOPED_TRACE(kPolicies[i]);
      EXPECT_EQ(together[i].policy, alone[i].policy);
      EXPECT_EQ(together[i].tokens, alone[i].tokens);
      EXPECT_EQ(together[i].nll, alone[i].nll);
      EXPECT_EQ(together[i].kept_mean, alone[i].kept_mean);
      EXPECT_EQ(together[i].kept_max, alone[i].kept_max);
      EXPECT_EQ(together[i].dead_share, alone[i].dead_share);
      EXPECT_EQ(together[i].kv_bytes_peak, alone[i].kv_bytes_peak);
      EXPECT_EQ(together[i].timed, alone[i].timed);
      EXPECT_GT(together[i].forward_ms, 0);
      EXPECT_GT(together[i].tpot_ms, 0);
      EXPECT_FALSE(alone[i].full.has_value());
    }
  }
}

// Windows begin anew: each is a text of its own.
TEST_F(Comparison, OfWindows) {
  const auto results = evaluate(f16_, text(200),
                                {.policies = {"h2o:budget=24,recent=12"},
                                 .window = 64,
                                 .whole_windows = true,
                                 .chunk = 16,
                                 .compare_full = true});
  Expected all;
  for (std::size_t begin = 0; begin + 64 <= 200; begin += 64) {
    std::vector<TokenId> part(tokens_.begin() + static_cast<std::ptrdiff_t>(begin),
                              tokens_.begin() + static_cast<std::ptrdiff_t>(begin + 64));
    part.front() = 1;
    const Expected one = expect(Alone(f16_, "full", part, 16), Alone(f16_, "h2o:budget=24,recent=12", part, 16), part);
    all.nll.insert(all.nll.end(), one.nll.begin(), one.nll.end());
    all.kld.insert(all.kld.end(), one.kld.begin(), one.kld.end());
    all.agree += one.agree / 3;
  }
  EXPECT_EQ(results[0].tokens, 3 * 63);
  EXPECT_NEAR(results[0].full->top1_agree, all.agree, 1e-12);
  all.agree = results[0].full->top1_agree;
  expect_near(results[0], all);
}

// Windows and texts that are read together have the figures of those that are read alone, in the same order.
TEST_F(Comparison, WindowsReadTogetherHaveTheSameFigures) {
  const std::vector<std::vector<TokenId>> texts = {{tokens_.begin(), tokens_.begin() + 330},
                                                   {tokens_.begin() + 300, tokens_.begin() + 500},
                                                   {tokens_.begin() + 400, tokens_.begin() + 700}};
  std::vector<PerplexityOptions> cases;
  for (const bool compared : {true, false}) {
    cases.push_back({.window = 64, .chunk = 0, .compare_full = compared});
    cases.push_back({.window = 90, .whole_windows = true, .chunk = 24, .prefill = 40, .compare_full = compared});
    cases.push_back({.chunk = 1, .compare_full = compared, .bins = 4});
    cases.push_back({.chunk = 24, .first_scored = 50, .compare_full = compared});
  }
  for (PerplexityOptions options : cases) {
    SCOPED_TRACE(fmt::format("window {}, chunk {}, compared {}", options.window, options.chunk, options.compare_full));
    options.policies = kPolicies;
    options.policies.insert(options.policies.end(), {"snapkv:budget=24,window=8", "quest:budget=64", "synckv:mem=60%"});
    options.kv_types = {"f16", "q4"};
    options.keep_nlls = true;
    for (const int parallel : {2, 16}) {
      options.parallel = parallel;
      const auto together = evaluate_perplexities(f16_, texts, options, {});
      ASSERT_TRUE(together.ok()) << together.status().message();
      PerplexityOptions single = options;
      single.parallel = 1;
      for (std::size_t t = 0; t < texts.size(); ++t) {
        const auto alone = evaluate(f16_, texts[t], single);
        ASSERT_EQ((*together)[t].size(), alone.size());
        for (std::size_t i = 0; i < alone.size(); ++i) {
          const PerplexityResult& one = alone[i];
          const PerplexityResult& other = (*together)[t][i];
          SCOPED_TRACE(fmt::format("text {}, {} {}, {} at a time", t, one.policy, one.codec, parallel));
          EXPECT_EQ(other.sums.nlls, one.sums.nlls);
          EXPECT_EQ(other.sums.klds, one.sums.klds);
          EXPECT_EQ(other.nll, one.nll);
          EXPECT_EQ(other.kept_mean, one.kept_mean);
          EXPECT_EQ(other.dead_share, one.dead_share);
          EXPECT_EQ(other.encodings_mean, one.encodings_mean);
          EXPECT_EQ(other.encodings_max, one.encodings_max);
          EXPECT_EQ(other.kept_max, one.kept_max);
          EXPECT_EQ(other.seen_least, one.seen_least);
          EXPECT_EQ(other.kv_bytes_peak, one.kv_bytes_peak);
          EXPECT_EQ(other.curve.size(), one.curve.size());
        }
      }
    }
  }
  // One budget is for one window.
  const auto small = load(file_->path(), {.threads = 1, .kv_memory = 1 << 20});
  const auto refused = evaluate_perplexities(small, texts, {.window = 64, .parallel = 2}, {});
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  for (const int parallel : {0, -1, 257})
    EXPECT_EQ(evaluate_perplexity(f16_, texts[0], {.parallel = parallel}, {}).status().code(),
              StatusCode::kInvalidArgument);
}

TEST_F(Comparison, MemoryBoundsThePolicyNotTheMeasure) {
  const auto free = evaluate(f16_, text(300), {.policies = {"streaming:sinks=4,window=28"}, .compare_full = true});
  const auto small = load(file_->path(), {.threads = 1, .kv_type = "f16", .kv_memory = free[0].kv_bytes_peak});
  const auto bounded = evaluate(small, text(300), {.policies = {"streaming:sinks=4,window=28"}, .compare_full = true});
  EXPECT_EQ(bounded[0].full->kld_mean, free[0].full->kld_mean);
  EXPECT_EQ(bounded[0].kv_bytes_peak, free[0].kv_bytes_peak);
  const auto full = evaluate_perplexity(small, text(300), {.policies = {"full"}, .compare_full = true}, {});
  EXPECT_EQ(full.status().code(), StatusCode::kResourceExhausted);
  // More than any machine has, for two caches.
  const auto huge = load(file_->path(), {.threads = 1, .kv_type = "f16", .kv_memory = memory_bound() / 4 * 3});
  const auto two = evaluate_perplexity(huge, text(300), {.policies = {"full", "window"}, .compare_full = true}, {});
  EXPECT_EQ(two.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(two.status().message().find("side by side"), std::string::npos) << two.status().message();
  int calls = 0;
  const auto stopped = evaluate_perplexity(f16_, text(300), {.policies = {"full", "window"}, .compare_full = true},
                                           [&](std::int64_t, std::int64_t) { return ++calls < 5; });
  EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(calls, 5);
}

TEST_F(Comparison, KeptTokensAndDeadSlotsAreThoseOfThePasses) {
  constexpr int kSize = 200;
  // One token per pass: row t sees min(t, 20) tokens beside itself; pages of 32 leave when their last token does.
  double kept = 0;
  double dead = 0;
  for (int t = 0; t + 1 < kSize; ++t) {
    const int oldest = std::max(0, t - 20);
    const int begin = oldest / 32 * 32;
    kept += t + 1 - oldest;
    dead += static_cast<double>(oldest - begin) / (t + 1 - begin);
  }
  const auto window = evaluate(f16_, text(kSize), {.policies = {"window:size=20"}}).front();
  EXPECT_NEAR(window.kept_mean, kept / (kSize - 1), 1e-9);
  EXPECT_NEAR(window.dead_share, dead / (kSize - 1), 1e-9);
  EXPECT_GT(window.dead_share, 0.1);
  EXPECT_EQ(window.kept_max, 21);

  // In passes of 24, too, a row counts what it sees itself; rows that are not scored count nothing.
  kept = 0;
  for (int t = 60; t + 1 < kSize; ++t) kept += t + 1;
  const auto full = evaluate(f16_, text(kSize), {.chunk = 24, .first_scored = 60}).front();
  EXPECT_NEAR(full.kept_mean, kept / (kSize - 61), 1e-9);
  EXPECT_EQ(full.dead_share, 0);

  const auto recompute = evaluate(f16_, text(kSize), {.policies = {"recompute:size=24"}}).front();
  EXPECT_NEAR(recompute.kept_mean, (23 * 24 / 2 + (kSize - 1 - 23) * 24) / (kSize - 1.0), 1e-9);

  // Where layers keep different numbers: their mean.
  const std::string spec = "lethe:tau=1.5,recent=0.1,start=40,max=100";
  const auto lethe = evaluate(f16_, text(300), {.policies = {spec}}).front();
  const auto runner = new_runner(f16_, spec);
  kept = 0;
  bool differ = false;
  for (std::size_t t = 0; t + 1 < 300; ++t) {
    const KvSequence& sequence = runner->sequence();
    ASSERT_EQ(sequence.tables(), 2);
    kept += 1 + static_cast<double>(sequence.table(0).length() + sequence.table(1).length()) / 2;
    differ |= sequence.table(0).length() != sequence.table(1).length();
    ASSERT_TRUE(
        runner->feed(text(300).subspan(t, 1), 1, SequenceRunner::Logits::kNone, {}, SequenceRunner::Source::kGenerated)
            .ok());
  }
  EXPECT_TRUE(differ);
  EXPECT_NEAR(lethe.kept_mean, kept / 299, 1e-9);
}

TEST_F(Comparison, CurvesAreMeansOfTheirPositions) {
  constexpr int kSize = 203;
  constexpr int kSkip = 20;
  constexpr int kBins = 7;
  const std::string policy = "streaming:sinks=4,window=28";
  const auto result =
      evaluate(f16_, text(kSize), {.policies = {policy}, .first_scored = kSkip, .compare_full = true, .bins = kBins})
          .front();
  const Expected expected =
      expect(Alone(f16_, "full", text(kSize), 1), Alone(f16_, policy, text(kSize), 1), text(kSize), kSkip);
  // Positions 21 to 202 in seven parts of 26 each.
  ASSERT_EQ(result.curve.size(), 7u);
  for (std::size_t i = 0; i < 7; ++i) {
    const PerplexityCurvePoint& point = result.curve[i];
    EXPECT_EQ(point.tokens, 26);
    EXPECT_NEAR(point.position, 21 + 26 * static_cast<double>(i) + 12.5, 1e-9);
    EXPECT_NEAR(point.nll, mean(std::span(expected.nll).subspan(26 * i, 26)), 1e-9);
    EXPECT_NEAR(point.kld, mean(std::span(expected.kld).subspan(26 * i, 26)), 1e-9);
    double kept = 0;
    for (std::size_t t = 20 + 26 * i; t < 20 + 26 * (i + 1); ++t) kept += std::min(static_cast<double>(t + 1), 33.0);
    EXPECT_NEAR(point.kept, kept / 26, 1e-9);
  }

  // Where the parts are not equal, they still sum to the whole; and of windows, positions are those within.
  for (const int window : {0, 75}) {
    const auto parts =
        evaluate(f16_, text(kSize), {.policies = {policy}, .window = window, .compare_full = true, .bins = 11}).front();
    double nll = 0;
    double kld = 0;
    double kept = 0;
    std::int64_t tokens = 0;
    double before = window / 2.0;
    for (const PerplexityCurvePoint& point : parts.curve) {
      const auto n = static_cast<double>(point.tokens);
      tokens += point.tokens;
      nll += n * point.nll;
      kld += n * point.kld;
      kept += n * point.kept;
      EXPECT_GT(point.position, before);
      before = point.position;
    }
    EXPECT_EQ(parts.curve.size(), 11u);
    EXPECT_LT(before, window > 0 ? window : kSize);
    EXPECT_EQ(tokens, parts.tokens);
    EXPECT_NEAR(nll / static_cast<double>(tokens), parts.nll, 1e-9);
    EXPECT_NEAR(kld / static_cast<double>(tokens), parts.full->kld_mean, 1e-9);
    EXPECT_NEAR(kept / static_cast<double>(tokens), parts.kept_mean, 1e-9);
  }

  // A bin that nothing falls into is left out.
  const auto rare = evaluate(f16_, text(200), {.policies = {"recompute:size=8,stride=50"}, .bins = 199}).front();
  ASSERT_EQ(rare.curve.size(), 4u);
  EXPECT_EQ(rare.curve[1].position, 51);
  EXPECT_TRUE(evaluate(f16_, text(200), {}).front().curve.empty());
}

// Differences of tokens, from the logits of sequences that ran alone.
TEST_F(Comparison, RunsArePairedTokenByToken) {
  const std::vector<std::string> policies = {"full", "random:budget=48"};
  const PerplexityOptions options{.policies = policies, .chunk = 24, .bins_over = 300, .keep_nlls = true};
  const auto results = evaluate(f16_, text(300), options);
  const auto other = evaluate(f16_, text(100), options);
  const Alone full(f16_, "full", text(300), 24), few(f16_, policies[1], text(300), 24);
  std::vector<double> differences = expect(full, few, text(300)).nll;
  const std::vector<double> reference = expect(full, full, text(300)).nll;
  for (std::size_t i = 0; i < differences.size(); ++i) differences[i] -= reference[i];
  double variance = 0;
  for (const double each : differences) variance += (each - mean(differences)) * (each - mean(differences)) / 298;
  const auto difference = nll_difference(results[1], results[0]);
  ASSERT_TRUE(difference.has_value());
  EXPECT_NEAR(difference->mean, mean(differences), 1e-9);
  EXPECT_NEAR(difference->mean, results[1].nll - results[0].nll, 1e-12);
  EXPECT_NEAR(difference->error, std::sqrt(variance / 299), 1e-9);
  EXPECT_LT(difference->error, results[0].ppl_error / results[0].ppl);
  EXPECT_FALSE(nll_difference(results[1], other[0]).has_value()) << "other tokens";
  // Pooled texts, in whose sums each text's tokens follow each other.
  const PerplexityResult both[] = {pool_perplexity(std::vector{results[0], other[0]}),
                                   pool_perplexity(std::vector{results[1], other[1]})};
  EXPECT_NEAR(nll_difference(both[1], both[0])->mean, both[1].nll - both[0].nll, 1e-12);
  // Without being asked to, a run keeps no value of its tokens.
  const auto plain = evaluate(f16_, text(100), {.policies = policies, .chunk = 24});
  EXPECT_TRUE(plain[0].sums.nlls.empty());
  EXPECT_FALSE(nll_difference(plain[1], plain[0]).has_value());
}

TEST_F(Comparison, PooledTextsWeighTheirTokens) {
  const PerplexityOptions options{
      .policies = {"tova:budget=32"}, .chunk = 16, .compare_full = true, .bins = 5, .bins_over = 400};
  std::vector<PerplexityResult> texts;
  std::vector<std::vector<TokenId>> contents;
  for (const std::size_t size : {400u, 100u, 250u}) {
    contents.push_back(random_tokens(static_cast<int>(size), kVocabulary, size));
    contents.back().front() = 1;
    texts.push_back(evaluate(f16_, contents.back(), options).front());
  }
  const PerplexityResult all = pool_perplexity(texts);
  EXPECT_EQ(all.policy, texts[0].policy);
  EXPECT_EQ(all.tokens, 399 + 99 + 249);

  Expected expected;
  for (const std::vector<TokenId>& text : contents) {
    const Expected one = expect(Alone(f16_, "full", text, 16), Alone(f16_, "tova:budget=32", text, 16), text);
    expected.nll.insert(expected.nll.end(), one.nll.begin(), one.nll.end());
    expected.kld.insert(expected.kld.end(), one.kld.begin(), one.kld.end());
    expected.agree += one.agree * static_cast<double>(one.nll.size()) / 747;
  }
  EXPECT_NEAR(all.full->top1_agree, expected.agree, 1e-12);
  expected.agree = all.full->top1_agree;
  expect_near(all, expected);
  EXPECT_DOUBLE_EQ(all.ppl, std::exp(all.nll));
  double variance = 0;
  for (const double nll : expected.nll) variance += (nll - mean(expected.nll)) * (nll - mean(expected.nll)) / 746;
  EXPECT_NEAR(all.ppl_error, all.ppl * std::sqrt(variance / 747), 1e-9 * all.ppl);

  EXPECT_NEAR(all.kept_mean, (texts[0].kept_mean * 399 + texts[1].kept_mean * 99 + texts[2].kept_mean * 249) / 747,
              1e-9);
  EXPECT_EQ(all.kept_max, std::max({texts[0].kept_max, texts[1].kept_max, texts[2].kept_max}));
  EXPECT_EQ(all.kv_bytes_peak, std::max({texts[0].kv_bytes_peak, texts[1].kv_bytes_peak, texts[2].kv_bytes_peak}));
  EXPECT_EQ(all.timed, texts[0].timed + texts[1].timed + texts[2].timed);

  // Bins are parts of the longest text: the shortest reaches into two of them.
  ASSERT_EQ(texts[1].curve.size(), 2u);
  ASSERT_EQ(all.curve.size(), 5u);
  const auto weight = [](const PerplexityCurvePoint& point) { return static_cast<double>(point.tokens); };
  const double second = weight(texts[0].curve[1]) * texts[0].curve[1].nll +
                        weight(texts[1].curve[1]) * texts[1].curve[1].nll +
                        weight(texts[2].curve[1]) * texts[2].curve[1].nll;
  EXPECT_NEAR(all.curve[1].nll, second / weight(all.curve[1]), 1e-9);
  EXPECT_EQ(all.curve[4].tokens, texts[0].curve[4].tokens);

  const PerplexityResult one = pool_perplexity(std::span(texts).first(1));
  EXPECT_EQ(one.nll, texts[0].nll);
  EXPECT_EQ(one.full->kld_p99, texts[0].full->kld_p99);
}

}  // namespace
}  // namespace kvasir::test
