// Requests that promise quality (kv.quality): what is measured, how budgets follow, and that neither depends on what
// runs beside them.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kvasir/engine.h"
#include "planning/quality_plan.h"
#include "requests/request_desk.h"
#include "support/mebibyte.h"
#include "tiers/faulty_file.h"

namespace kvasir::test {
namespace {

RandomModelSpec quality_spec() {
  RandomModelSpec spec;
  spec.context = 512;
  spec.output_gain = 3;  // predictions that differ
  return spec;
}

const TemporaryFile& quality_file() {
  static const TemporaryFile file(make_random_model(quality_spec()));
  return file;
}

std::shared_ptr<LoadedModel> quality_model(EngineOptions options = {}) {
  return load(quality_file().path(), options);
}

RequestOptions promising(const std::string& policy, const QualityOptions& quality, int letters = 90,
                         std::int64_t tokens = 80, std::uint64_t seed = 5) {
  RequestOptions options;
  options.policy = policy;
  options.prompt = random_text(letters, seed);
  options.quality = quality;
  options.generate = {.max_tokens = tokens, .ignore_eos = true, .logprobs = 0};
  options.generate.sampling.seed = seed;
  options.generate.sampling.temperature = 1;
  return options;
}

// The tokens of a finished text: prompt and answer.
std::vector<TokenId> text_of(const LoadedModel& model, const RequestOptions& options, const GenerateResult& result) {
  std::vector<TokenId> tokens = encode_request(model, options)->tokens;
  for (const GeneratedToken& choice : result.choices) tokens.push_back(choice.token.id);
  return tokens;
}

// KL(full || policy), by the definition.
double divergence(std::span<const float> full, std::span<const float> policy) {
  const auto log_sum = [](std::span<const float> logits) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    return std::log(sum);
  };
  const double p = log_sum(full), q = log_sum(policy);
  double sum = 0;
  for (std::size_t i = 0; i < full.size(); ++i) {
    const double log_p = static_cast<double>(full[i]) - p;
    sum += std::exp(log_p) * (log_p - (static_cast<double>(policy[i]) - q));
  }
  return sum;
}

// Logits of every row of a text that a request under one policy reads: a prompt in chunks, then token by token.
std::vector<float> logits_under(const std::shared_ptr<LoadedModel>& model, const std::string& policy,
                                std::span<const TokenId> text, std::size_t prompt) {
  const auto runner = new_runner(model, policy);
  std::vector<float> all;
  const auto keep = [&](std::int64_t, int, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
    return true;
  };
  EXPECT_TRUE(runner->feed(text.first(prompt), 0, Logits::kAll, keep).ok());
  EXPECT_TRUE(runner->feed(text.subspan(prompt), 0, Logits::kAll, keep, Source::kGenerated).ok());
  return all;
}

void expect_same(const QualityReport& a, const QualityReport& b) {
  EXPECT_EQ(a.kl_mean, b.kl_mean);
  EXPECT_EQ(a.kl_max, b.kl_max);
  EXPECT_EQ(a.compared, b.compared);
  EXPECT_EQ(a.checks, b.checks);
  EXPECT_EQ(a.unchecked, b.unchecked);
  EXPECT_EQ(a.budget, b.budget);
  EXPECT_EQ(a.budgets, b.budgets);
  EXPECT_EQ(a.held, b.held);
  EXPECT_EQ(a.shadow_tokens, b.shadow_tokens);
  EXPECT_EQ(a.reread_tokens, b.reread_tokens);
  EXPECT_EQ(a.rows_bytes, b.rows_bytes);
}

void expect_same(const GenerateResult& a, const GenerateResult& b) {
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.finish_reason, b.finish_reason);
  EXPECT_EQ(a.kv.policy, b.kv.policy);
  EXPECT_EQ(a.kv.kept, b.kv.kept);
  ASSERT_TRUE(a.quality && b.quality);
  expect_same(*a.quality, *b.quality);
}

GenerateResult run_alone(const RequestOptions& options, EngineOptions engine = {}, std::uint64_t memory = 64 * kMiB) {
  Desk desk(quality_model(engine), memory);
  const RequestId id = desk.add(options);
  desk.run_to_end();
  EXPECT_TRUE(desk.told(id).ended && !desk.told(id).failed) << desk.told(id).status.message();
  return desk.told(id).result;
}

const std::vector<std::string>& policies_with_budgets() {
  static const std::vector<std::string> policies = {"streaming:sinks=4,window=60",
                                                    "streaming:sinks=4,window=44,every=16,realign=rotate",
                                                    "window:size=64",
                                                    "cascade:size=64,n=2",
                                                    "h2o:budget=64,recent=32",
                                                    "tova:budget=64",
                                                    "random:budget=64",
                                                    "snapkv:budget=48,window=8",
                                                    "lethe:max=72,start=64"};
  return policies;
}

class QualityOf : public ::testing::TestWithParam<int> {
 protected:
  static std::string policy() { return policies_with_budgets()[static_cast<std::size_t>(GetParam())]; }
};

TEST_P(QualityOf, WhatIsMeasuredIsTheDistanceOfTwoSequences) {
  const auto model = quality_model();
  RequestOptions options = promising(policy(), {.kl = 100, .every = 16, .stride = 3});
  const auto spec = PolicySpec::parse(policy());
  options.quality->least = QualityBudget::create(*spec, {}, 0)->first();
  const GenerateResult result = run_alone(options);
  ASSERT_TRUE(result.quality);
  const QualityReport& quality = *result.quality;
  EXPECT_EQ(quality.checks, 4) << "a text of 80 tokens ends at its fifth check";
  EXPECT_EQ(quality.unchecked, 16);
  EXPECT_EQ(quality.budgets.size(), 1u);
  const std::vector<TokenId> text = text_of(*model, options, result);
  const auto prompt = static_cast<std::size_t>(result.prompt_tokens);
  const std::vector<float> under = logits_under(model, policy(), text, prompt);
  const std::vector<float> full = all_logits(*new_runner(model, "full"), text, 64);
  const auto vocabulary = static_cast<std::size_t>(model->config.vocabulary);
  double sum = 0;
  std::int64_t rows = 0;
  for (std::size_t token = 0; token <= 64; token += 3, ++rows) {
    const std::size_t at = (prompt - 1 + token) * vocabulary;
    sum += divergence(std::span(full).subspan(at, vocabulary), std::span(under).subspan(at, vocabulary));
  }
  EXPECT_EQ(quality.compared, rows);
  EXPECT_GT(quality.kl_mean, 1e-4) << "the policy costs nothing: the test shows nothing";
  EXPECT_NEAR(quality.kl_mean, sum / static_cast<double>(rows), 1e-6 * quality.kl_mean + 1e-9);
  EXPECT_TRUE(quality.held);
}

TEST_P(QualityOf, NothingBesideTheTextChangesAnything) {
  const RequestOptions options = promising(policy(), {.kl = 0.02, .every = 16, .stride = 4}, 90, 100);
  const GenerateResult expected = run_alone(options);
  ASSERT_GT(expected.quality->budgets.size(), 1u) << "the budget never moves: the test shows little";
  {
    SCOPED_TRACE("two threads");
    expect_same(run_alone(options, {.threads = 2}), expected);
  }
  // Little memory, others beside it, and a cache of prefixes that has the text.
  const auto model = quality_model();
  QualityAsk ask{*options.quality,
                 nullptr,
                 model->kv_shape,
                 model->codecs,
                 expected.prompt_tokens,
                 expected.prompt_tokens + 100,
                 0,
                 model->config.context,
                 model->config.vocabulary};
  const auto first = *make_policy(policy());
  ask.policy = first.get();
  const std::uint64_t least = quality_terms(ask)->bytes();
  for (const std::uint64_t memory : {least, least + least / 2, 4 * least}) {
    SCOPED_TRACE(memory);
    Desk desk(model, memory);
    desk.queue().cache_prefixes(memory);
    std::map<RequestId, RequestOptions> asked;
    std::mt19937_64 random(17);
    for (int i = 0; i < 4; ++i) {
      RequestOptions other = random_request(random, policies_for_requests(), 60);
      other.samples = 1;
      desk.add(other);
    }
    const RequestId one = desk.add(options), same = desk.add(options);
    for (int i = 0; i < 4; ++i) {
      RequestOptions other = random_request(random, policies_for_requests(), 60);
      other.samples = 1;
      other.priority = -1;  // takes pages of those that run
      desk.add(other);
      for (int polls = 0; polls < 12 && desk.queue().unfinished() > 0; ++polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
    }
    for (int polls = 0; desk.queue().unfinished() > 0; ++polls) {
      ASSERT_LT(polls, 100000) << "no end";
      ASSERT_NO_FATAL_FAILURE(desk.poll());
    }
    expect_same(desk.told(one).result, expected);
    expect_same(desk.told(same).result, expected);
    EXPECT_LE(desk.runner()->cache()->budget().peak(), memory);
    EXPECT_GT(desk.queue().counters().shadow_tokens, 0);
    if (memory == least) {
      EXPECT_GT(desk.queue().counters().preempted, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, QualityOf, ::testing::Range(0, 9));

TEST(QualityRequests, ATightBoundEndsWithAPolicyThatDropsNothing) {
  for (const char* policy : {"streaming:sinks=4,window=60", "h2o:budget=64,recent=32"}) {
    SCOPED_TRACE(policy);
    const RequestOptions options = promising(policy, {.kl = 1e-9, .every = 16, .stride = 1}, 90, 200);
    const GenerateResult result = run_alone(options);
    const QualityReport& quality = *result.quality;
    EXPECT_GE(quality.budget, result.prompt_tokens + 200);
    EXPECT_FALSE(quality.held);
    ASSERT_GE(quality.budgets.size(), 2u);
    for (std::size_t i = 1; i < quality.budgets.size(); ++i)
      EXPECT_GT(quality.budgets[i].budget, quality.budgets[i - 1].budget);
    // From there on the answer is full attention's: each further check adds samples of zero.
    const std::int64_t last = quality.budgets.back().token;
    ASSERT_LT(last, 192);
    RequestOptions shorter = options;
    shorter.generate.max_tokens = last + 1;
    shorter.quality->most = quality.budget;  // the same budgets, though the text is shorter
    const QualityReport before = *run_alone(shorter).quality;
    EXPECT_EQ(before.budgets, quality.budgets);
    EXPECT_GT(before.kl_mean, 0);
    EXPECT_DOUBLE_EQ(quality.kl_mean * static_cast<double>(quality.compared),
                     before.kl_mean * static_cast<double>(before.compared));
    // The policy has the state that it has after the same tokens alone.
    EXPECT_EQ(result.kv.kept, result.kv.seen);
  }
}

TEST(QualityRequests, ALooseBoundShrinksToTheLeast) {
  RequestOptions options = promising("streaming:sinks=4,window=200", {.kl = 1000, .every = 8, .stride = 8}, 90, 300);
  options.quality->least = 32;
  const QualityReport quality = *run_alone(options).quality;
  EXPECT_EQ(quality.budget, 32);
  EXPECT_TRUE(quality.held);
  EXPECT_GT(quality.reread_tokens, 0);
}

TEST(QualityRequests, AnotherBudgetLeavesTheStateOfThatBudgetAlone) {
  const auto model = quality_model();
  const RequestOptions options = promising("h2o:budget=64,recent=32", {.kl = 0.02, .every = 16, .stride = 4}, 90, 100);
  const GenerateResult result = run_alone(options);
  ASSERT_GT(result.quality->budgets.size(), 1u);
  const std::vector<TokenId> text = text_of(*model, options, result);
  const auto runner = new_runner(model, result.kv.policy);
  const auto prompt = static_cast<std::size_t>(result.prompt_tokens);
  const auto go_on = [](auto...) { return true; };
  // The last token is drawn, but has not run before the text ends.
  ASSERT_TRUE(runner->feed(std::span(text).first(prompt), 0, Logits::kNone, go_on).ok());
  ASSERT_TRUE(runner->feed(std::span(text).subspan(prompt), 0, Logits::kNone, go_on, Source::kGenerated).ok());
  EXPECT_EQ(result.kv.seen, runner->sequence().next_index());
  EXPECT_EQ(result.kv.kept, std::llround(runner->sequence().mean_stored()));
}

// Many promises in the memory of few, with a swap file, quotas, reservations, few places, and some that leave: each has
// what it has alone, and nothing of any stays.
TEST(QualityRequests, InACrowdEachHasWhatItHasAlone) {
  const auto model = quality_model();
  std::vector<RequestOptions> requests;
  std::vector<GenerateResult> expected;
  std::uint64_t most = 0;
  std::mt19937_64 random(23);
  for (int i = 0; i < 12; ++i) {
    const QualityOptions quality{.kl = 0.02, .every = 8 + static_cast<int>(random() % 12), .stride = 4};
    const std::string& policy = policies_with_budgets()[random() % policies_with_budgets().size()];
    const int letters = 40 + static_cast<int>(random() % 80);
    requests.push_back(promising(policy, quality, letters, 40 + static_cast<int>(random() % 40), random() % 1000));
    expected.push_back(run_alone(requests.back()));
    const std::unique_ptr<RetentionPolicy> first = std::move(*make_policy(policy));
    QualityAsk ask{quality, first.get(), model->kv_shape, model->codecs, expected.back().prompt_tokens};
    ask.tokens = ask.prompt + requests.back().generate.max_tokens;
    ask.context = model->config.context;
    ask.vocabulary = model->config.vocabulary;
    most = std::max(most, quality_terms(ask)->bytes());
  }
  std::int64_t preempted = 0, swapped = 0;
  for (int kind = 0; kind < 8; ++kind) {
    SCOPED_TRACE(kind);
    ScheduleLimits limits{.prompt_rows = 20, .running = kind % 2 == 0 ? 64 : 3, .ahead = 0};
    if (kind == 4) limits.admission = Admission::kReserve;
    if (kind == 5) limits.stop_mark = 0.9, limits.preempt_mark = 0.95;
    Desk desk(model, kind % 3 == 2 ? 3 * most : most, limits);
    if (kind % 4 == 3)
      desk.queue().swap_to(*SpillFile::create(std::make_unique<FaultyFile>(no_fault), 16 * SpillFile::kPartBytes),
                           true);
    if (kind == 6) desk.queue().set_quota(0, {0, most});
    std::map<RequestId, std::size_t> ids;
    std::set<RequestId> cancelled;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      RequestOptions options = requests[i];
      options.priority = static_cast<int>(random() % 2);
      options.tenant = kind == 6 ? 0 : static_cast<int>(random() % 2);
      ids[desk.add(options)] = i;
      for (auto polls = random() % 10; polls > 0; --polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
      if (kind != 7 || random() % 3 != 0) continue;
      const RequestId gone = std::next(ids.begin(), static_cast<std::ptrdiff_t>(random() % ids.size()))->first;
      if (desk.queue().cancel(gone).ok()) cancelled.insert(gone);
    }
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    for (const auto& [id, i] : ids) {
      SCOPED_TRACE(requests[i].policy);
      if (cancelled.count(id) > 0) continue;
      ASSERT_TRUE(desk.told(id).ended && !desk.told(id).failed) << desk.told(id).status.message();
      expect_same(desk.told(id).result, expected[i]);
    }
    preempted += desk.queue().counters().preempted;
    swapped += desk.queue().counters().swapped_in;
  }
  EXPECT_GT(preempted, 20);
  EXPECT_GT(swapped, 0);
}

TEST(QualityRequests, CancelledAtAnyMomentLeavesNothing) {
  for (int polls = 0; polls < 60; ++polls) {
    Desk desk(quality_model(), 16 * kMiB);
    const RequestId id = desk.add(promising("window:size=64", {.kl = 0.02, .every = 8, .stride = 4}, 90, 40));
    const RequestId other = desk.add(promising("window:size=64", {.kl = 0.02, .every = 8, .stride = 4}, 60, 40, 9));
    for (int i = 0; i < polls && desk.queue().unfinished() == 2; ++i) ASSERT_NO_FATAL_FAILURE(desk.poll());
    if (!desk.told(id).ended) {
      ASSERT_TRUE(desk.queue().cancel(id).ok());
    }
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    EXPECT_TRUE(desk.told(id).ended && desk.told(other).ended);
    EXPECT_EQ(desk.told(other).result.finish_reason, FinishReason::kLength);
  }
}

std::unique_ptr<Engine> quality_engine(std::uint64_t kv_memory, std::vector<std::string> kv_types = {}) {
  EngineOptions options;
  options.model = quality_file().path();
  options.threads = 1;
  options.kv_memory = kv_memory;
  if (!kv_types.empty()) options.kv_type = kv_types.front();
  if (kv_types.size() > 1) options.kv_types.assign(kv_types.begin() + 1, kv_types.end());
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(*engine);
}

GenerateResult finish(Engine& engine, const RequestOptions& options) {
  const Result<RequestId> id = engine.submit(options);
  EXPECT_TRUE(id.ok()) << id.status().message();
  GenerateResult result;
  while (engine.unfinished() > 0) {
    const Result<std::vector<Event>> events = engine.poll();
    EXPECT_TRUE(events.ok());
    for (const Event& event : *events)
      if (event.kind == Event::Kind::kFinished) result = event.result;
  }
  return result;
}

TEST(QualityRequests, RunInExactlyTheMemoryOfTheirPlan) {
  for (const std::vector<std::string>& codecs : {std::vector<std::string>{"f16"}, {"q8"}, {"q8", "f16"}})
    for (const char* policy : {"streaming:sinks=4,window=60", "h2o:budget=64,recent=32", "snapkv:budget=48,window=8"}) {
      SCOPED_TRACE(std::string(policy) + ' ' + codecs.back());
      RequestOptions options = promising(policy, {.kl = 1e-6, .every = 16, .stride = 4}, 90, 100);
      const auto roomy = quality_engine(64 * kMiB, codecs);
      const auto tokens = static_cast<std::int64_t>(roomy->text().encode_prompt(options)->tokens.size());
      const PlanRequest ask{.policy = policy, .prompt = tokens, .max_tokens = 100, .quality = options.quality};
      const Result<RequestPlan> plan = roomy->plan(ask);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_TRUE(plan->refusal.ok());
      EXPECT_GT(plan->quality_bytes, 0u);
      const GenerateResult wide = finish(*roomy, options);
      EXPECT_LE(roomy->cache().bytes_peak, plan->bytes);
      EXPECT_LE(wide.quality->shadow_bytes + wide.quality->rows_bytes, plan->quality_bytes);
      const auto exact = quality_engine(plan->bytes, codecs);
      const GenerateResult narrow = finish(*exact, options);
      EXPECT_EQ(narrow.finish_reason, FinishReason::kLength);
      expect_same(narrow, wide);
      EXPECT_LE(exact->cache().bytes_peak, plan->bytes);
      const auto less = quality_engine(plan->bytes - 1, codecs);
      const Status refused = less->submit(options).status();
      EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.message();
      EXPECT_FALSE(less->plan(ask)->refusal.ok());
      // Without a limit of its own the answer ends where the full cache beside it still fits.
      options.generate.max_tokens = -1;
      const GenerateResult shorter = finish(*less, options);
      EXPECT_EQ(shorter.finish_reason, FinishReason::kLength);
      EXPECT_LT(shorter.tokens, 100);
      EXPECT_GT(shorter.tokens, 80);
    }
}

// With a cache of prefixes a shadow continues what the one before it has read; the figures are the same.
TEST(QualityRequests, ShadowsContinueEachOtherFromTheCacheOfPrefixes) {
  const RequestOptions options =
      promising("streaming:sinks=4,window=60", {.kl = 100, .every = 16, .stride = 4}, 400, 100);
  Desk cold(quality_model(), 64 * kMiB), warm(quality_model(), 64 * kMiB);
  warm.queue().cache_prefixes(32 * kMiB);
  const RequestId one = cold.add(options), other = warm.add(options);
  ASSERT_NO_FATAL_FAILURE(cold.run_to_end());
  while (warm.queue().unfinished() > 0) ASSERT_NO_FATAL_FAILURE(warm.poll());
  expect_same(warm.told(other).result, cold.told(one).result);
  EXPECT_EQ(cold.queue().counters().shadow_tokens, cold.told(one).result.quality->shadow_tokens);
  EXPECT_LT(warm.queue().counters().shadow_tokens * 3, cold.queue().counters().shadow_tokens * 2);
  EXPECT_EQ(warm.queue().counters().prefix_queries, warm.told(other).result.prompt_tokens) << "a shadow's do not count";
}

TEST(QualityRequests, SizeTheCacheForThemselvesWhereNobodyDoes) {
  const auto engine = quality_engine(0);
  const RequestOptions options = promising("streaming:sinks=4,window=60", {.kl = 0.02, .every = 16}, 90, 64);
  EXPECT_EQ(finish(*engine, options).finish_reason, FinishReason::kLength);
}

TEST(QualityRequests, AreRefusedWhereNothingCanBeHeld) {
  const auto engine = quality_engine(64 * kMiB);
  const QualityOptions quality{.kl = 0.05, .every = 16, .stride = 4};
  const auto refused = [&](const RequestOptions& options, std::string_view setting, std::string_view names) {
    const Status status = engine->submit(options).status();
    EXPECT_FALSE(status.ok()) << names;
    EXPECT_EQ(std::ranges::count(status.settings(), setting), 1) << status.message();
    EXPECT_NE(status.message().find(names), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  };
  for (const char* policy : {"full", "quest:budget=64", "h2o:budget=50%"})
    refused(promising(policy, quality), "policy", "kv.quality moves the budget");
  refused(promising("h2o:budget=64,recent=8,pos=original@demote=q8", quality), "policy", "leave @demote out");
  refused(promising("window:size=64", quality, 90, 10000), "max_tokens", "512 tokens");
  refused(promising("window:size=64", {.kl = 0.05, .every = 16, .stride = 17}), "quality", "stride=17");
  refused(promising("window:size=64", {.kl = 0}), "quality", "kl=0");
  refused(promising("window:size=64", {.kl = 0.05, .most = 32}), "quality", "most=32");
  RequestOptions samples = promising("window:size=64", quality);
  samples.samples = 2;
  refused(samples, "quality", "one sample");
  RequestOptions embedding = promising("window:size=64", quality);
  embedding.pooling = Pooling::kMean;
  refused(embedding, "quality", "no embedding");
  RequestOptions session = promising("", quality);
  session.session = *engine->new_session({.policy = "window:size=64"});
  refused(session, "quality", "no session");
  refused(promising("window:size=64", {.kl = 0.05, .every = 1 << 20, .stride = 1}, 90, 80), "quality", "full cache");
}

}  // namespace
}  // namespace kvasir::test
