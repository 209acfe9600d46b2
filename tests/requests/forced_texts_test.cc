// Forced texts: tokens that are read as if they had been drawn, and scored.
#include <gtest/gtest.h>

#include <functional>

#include "kvasir/engine.h"
#include "support/originals.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

using Tokens = std::vector<std::int32_t>;

std::unique_ptr<Engine> open(const std::string& name) {
  EngineOptions options;
  options.model = source_dir() + "/tests/reference/originals/" + name + ".gguf";
  options.kv_memory = std::uint64_t{1} << 24;
  options.threads = 1;
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(*engine);
}

Tokens prompt_of(int count) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 37 + 11) % 90);
  return tokens;
}

// Runs one request and returns its samples' results.
std::vector<GenerateResult> run(Engine& engine, const RequestOptions& request) {
  std::vector<GenerateResult> results(static_cast<std::size_t>(request.samples));
  const auto id = engine.submit(request);
  EXPECT_TRUE(id.ok()) << id.status().message();
  while (id.ok() && engine.unfinished() > 0) {
    const auto events = engine.poll();
    EXPECT_TRUE(events.ok());
    for (const Event& event : *events)
      if (event.kind == Event::Kind::kFinished) results[static_cast<std::size_t>(event.sample)] = event.result;
  }
  return results;
}

RequestOptions request_of(const std::string& policy) {
  RequestOptions request;
  request.tokens = prompt_of(70);
  request.policy = policy;
  request.bypass = true;
  request.generate.logprobs = 2;
  request.generate.sampling.temperature = 0;
  return request;
}

Tokens tokens_of(const GenerateResult& result) {
  Tokens tokens;
  for (const GeneratedToken& token : result.choices) tokens.push_back(token.token.id);
  return tokens;
}

void expect_same_choices(const GenerateResult& a, const GenerateResult& b) {
  ASSERT_EQ(a.choices.size(), b.choices.size());
  for (std::size_t i = 0; i < a.choices.size(); ++i) {
    EXPECT_EQ(a.choices[i].token.id, b.choices[i].token.id) << i;
    EXPECT_EQ(a.choices[i].token.log_probability, b.choices[i].token.log_probability) << i;
    EXPECT_EQ(a.choices[i].token.rank, b.choices[i].token.rank) << i;
  }
}

class ForcedTexts : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

// What greedy decoding wrote has the same log-probabilities, to the bit, where it is forced.
TEST_P(ForcedTexts, ScoreWhatWasDrawnAsItWasDrawn) {
  const auto [model, policy] = GetParam();
  const auto engine = open(model);
  RequestOptions request = request_of(policy);
  request.generate.max_tokens = 12;
  request.generate.ignore_eos = true;
  const GenerateResult drawn = run(*engine, request).front();
  ASSERT_EQ(drawn.choices.size(), 12U);
  request.generate.ignore_eos = false;
  request.generate.max_tokens = -1;
  request.generate.forced_texts = {tokens_of(drawn)};
  const GenerateResult forced = run(*engine, request).front();
  expect_same_choices(drawn, forced);
  EXPECT_EQ(forced.finish_reason, FinishReason::kLength);
  EXPECT_EQ(forced.text, drawn.text);
  for (const GeneratedToken& token : forced.choices) EXPECT_EQ(token.token.rank, 1);
}

// Samples with texts of their own, of different lengths, score as requests with one text each.
TEST_P(ForcedTexts, OfSamplesScoreAsAlone) {
  const auto [model, policy] = GetParam();
  const auto engine = open(model);
  const std::vector<Tokens> texts = {{3, 4, 5}, {9}, {20, 21, 22, 23, 24, 25, 26, 27}};
  RequestOptions request = request_of(policy);
  request.samples = 3;
  request.generate.forced_texts = texts;
  const std::vector<GenerateResult> together = run(*engine, request);
  request.samples = 1;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    request.generate.forced_texts = {texts[i]};
    const GenerateResult alone = run(*engine, request).front();
    EXPECT_EQ(tokens_of(alone), texts[i]);
    expect_same_choices(together[i], alone);
  }
}

// A session's samples too.
TEST_P(ForcedTexts, OfSessionsScoreAsRequests) {
  const auto [model, policy] = GetParam();
  const auto engine = open(model);
  RequestOptions request = request_of(policy);
  request.generate.forced_texts = {{3, 4, 5, 6}};
  const GenerateResult alone = run(*engine, request).front();
  auto session = engine->new_session({.policy = policy});
  ASSERT_TRUE(session.ok());
  RequestOptions reading;
  reading.tokens = request.tokens;
  reading.session = std::move(*session);
  reading.generate.max_tokens = 0;
  (void)run(*engine, reading);
  GenerateOptions options = request.generate;
  options.forced_texts = {{3, 4, 5, 6}, {7, 8}};
  const auto samples = reading.session->sample(options, 2, {});
  ASSERT_TRUE(samples.ok()) << samples.status().message();
  expect_same_choices(samples->front(), alone);
  EXPECT_EQ(tokens_of(samples->back()), (Tokens{7, 8}));
}

INSTANTIATE_TEST_SUITE_P(All, ForcedTexts,
                         testing::Combine(testing::Values("llama", "gemma3", "qwen35"),
                                          testing::Values("full", "streaming:cap=48", "snapkv:budget=40")));

// End tokens in a forced text are tokens like others.
TEST(ForcedText, MayHoldEndTokens) {
  const auto engine = open("llama");
  RequestOptions request = request_of("full");
  Tokens all;
  for (std::int32_t token = 0; token < 96; ++token) all.push_back(token);
  request.generate.forced_texts = {all};
  EXPECT_EQ(tokens_of(run(*engine, request).front()), all);
}

TEST(ForcedText, OptionsThatHaveNoPlaceBesideItAreRefused) {
  const auto engine = open("llama");
  const auto refusal = [&](const std::function<void(RequestOptions&)>& change) {
    RequestOptions request = request_of("full");
    request.generate.forced_texts = {{1, 2, 3}};
    change(request);
    const auto id = engine->submit(request);
    EXPECT_FALSE(id.ok());
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
    return id.ok() ? "" : id.status().message();
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(refusal([](RequestOptions& r) { r.generate.forced_texts = {{}}; }), "no tokens"));
  EXPECT_TRUE(has(refusal([](RequestOptions& r) {
                    r.generate.forced_texts = {{1, 96000}};
                  }),
                  "outside the vocabulary"));
  EXPECT_TRUE(has(refusal([](RequestOptions& r) { r.generate.max_tokens = 2; }), "max_tokens=2"));
  EXPECT_TRUE(has(refusal([](RequestOptions& r) { r.samples = 2; }), "1 forced texts for 2 samples"));
  EXPECT_TRUE(has(refusal([](RequestOptions& r) { r.generate.stop = {"x"}; }), "have no place"));
  EXPECT_TRUE(has(refusal([](RequestOptions& r) { r.generate.allowed_tokens = {1}; }), "have no place"));
}

}  // namespace
}  // namespace kvasir::test
