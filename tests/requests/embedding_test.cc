// Embeddings: pooled hidden states against the logits of the reference model, whatever runs beside them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kvasir/engine.h"
#include "support/engine_fixture.h"
#include "support/families.h"
#include "support/mebibyte.h"

namespace kvasir::test {
namespace {

std::unique_ptr<Engine> open_model(const std::string& path, EngineOptions options = {}) {
  options.model = path;
  if (options.kv_memory == 0) options.kv_memory = 64 * kMiB;
  options.kv_type = "f32";
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(*engine) : nullptr;
}

RequestOptions embedding_of(std::vector<TokenId> tokens, Pooling pooling) {
  RequestOptions options;
  options.tokens = std::move(tokens);
  options.pooling = pooling;
  return options;
}

// Returns the results of the requests, which run together, in their order.
std::vector<GenerateResult> run_together(Engine& engine, const std::vector<RequestOptions>& requests) {
  std::vector<RequestId> ids;
  for (const RequestOptions& request : requests) {
    const auto id = engine.submit(request);
    EXPECT_TRUE(id.ok()) << id.status().message();
    ids.push_back(*id);
  }
  std::vector<GenerateResult> results(requests.size());
  std::size_t finished = 0;
  while (engine.unfinished() > 0) {
    const auto events = engine.poll();
    EXPECT_TRUE(events.ok());
    for (const Event& event : *events) {
      if (event.kind != Event::Kind::kFinished) continue;
      results[static_cast<std::size_t>(std::ranges::find(ids, event.request) - ids.begin())] = event.result;
      ++finished;
    }
  }
  EXPECT_EQ(finished, requests.size());
  return results;
}

std::vector<float> embed(Engine& engine, const std::vector<TokenId>& tokens, Pooling pooling) {
  return run_together(engine, {embedding_of(tokens, pooling)}).front().embedding;
}

// The output matrix of a file in floats, [vocabulary][width].
std::span<const float> output_matrix(const gguf::File& file) {
  const gguf::Tensor* output = file.find_tensor("output.weight");
  if (output == nullptr) output = file.find_tensor("token_embd.weight");
  EXPECT_EQ(output->type, static_cast<std::uint32_t>(DType::kF32));
  return {reinterpret_cast<const float*>(output->bytes.data()), output->bytes.size() / sizeof(float)};
}

// Logits are the output matrix times hidden states, so that times an embedding is the mean of logits, or the last.
TEST(Embedding, TimesTheOutputMatrixIsTheMeanOfTheReferencesLogits) {
  std::size_t compared = 0;
  for (const FamilyCase& family : family_cases()) {
    if (family.spec.dtype != std::string("f32")) continue;
    SCOPED_TRACE(family.name);
    const std::vector<std::byte> bytes = make_random_model(family.spec);
    const auto parsed = gguf::File::parse(bytes);
    ASSERT_TRUE(parsed.ok());
    if (!read_model_config(*parsed).ok()) continue;  // a family of the tests alone
    const std::vector<TokenId> tokens = random_tokens(90, family.spec.vocab, 5);
    const auto rows = ReferenceModel(*parsed).logits(std::vector<int>(tokens.begin(), tokens.end()));
    const TemporaryFile file(bytes);
    const auto engine = open_model(file.path(), {.chunk = 32});
    ASSERT_NE(engine, nullptr);
    const auto width = static_cast<std::size_t>(engine->model().width);
    const std::span<const float> output = output_matrix(*parsed);
    for (const Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
      std::vector<double> want = rows.back();
      if (pooling == Pooling::kMean) {
        std::ranges::fill(want, 0);
        for (const auto& row : rows)
          for (std::size_t i = 0; i < want.size(); ++i) want[i] += row[i] / static_cast<double>(rows.size());
      }
      const std::vector<float> embedding = embed(*engine, tokens, pooling);
      ASSERT_EQ(embedding.size(), width);
      std::vector<float> got(want.size(), 0);
      for (std::size_t row = 0; row < got.size(); ++row)
        for (std::size_t i = 0; i < width; ++i) got[row] += output[row * width + i] * embedding[i];
      EXPECT_LT(rms_error_ratio(got, want), 2e-5) << static_cast<int>(pooling);
      ++compared;
    }
  }
  EXPECT_GE(compared, 8u);
}

TEST(Embedding, BitsDependOnTheTextAlone) {
  const RandomModelSpec spec;
  const TemporaryFile file(make_random_model(spec));
  const std::vector<TokenId> tokens = random_tokens(200, spec.vocab, 1);
  for (const Pooling pooling : {Pooling::kMean, Pooling::kLast}) {
    const std::vector<float> alone = embed(*open_model(file.path(), {.threads = 1}), tokens, pooling);
    ASSERT_FALSE(alone.empty());
    const auto engine = open_model(file.path(), {.threads = 2, .chunk = 16});
    // Beside a text that is embedded otherwise, one that is generated, and one whose prompt's logits are all wanted.
    std::vector<RequestOptions> requests = {embedding_of(random_tokens(50, spec.vocab, 2), Pooling::kLast),
                                            embedding_of(tokens, pooling)};
    for (const std::uint64_t seed : {3, 4}) {
      RequestOptions& other = requests.emplace_back();
      other.tokens = random_tokens(70, spec.vocab, seed);
      other.generate.max_tokens = 20;
      other.generate.logprobs = 0;
      other.generate.sampling.temperature = 0;
      if (seed == 4) other.generate.prompt_logprobs = 1;
    }
    const auto ids_of = [](const GenerateResult& result) {
      std::vector<std::int32_t> ids;
      for (const GeneratedToken& choice : result.choices) ids.push_back(choice.token.id);
      return ids;
    };
    std::vector<std::vector<std::int32_t>> want;
    for (const std::size_t i : {2, 3}) want.push_back(ids_of(run_together(*engine, {requests[i]}).front()));
    const std::vector<GenerateResult> together = run_together(*engine, requests);
    ASSERT_EQ(together[1].embedding.size(), alone.size());
    EXPECT_EQ(std::memcmp(together[1].embedding.data(), alone.data(), alone.size() * sizeof(float)), 0);
    EXPECT_EQ(together[1].tokens, 0);
    EXPECT_EQ(together[1].prompt_tokens, 200);
    EXPECT_TRUE(together[2].embedding.empty());
    EXPECT_EQ(ids_of(together[2]), want[0]);
    EXPECT_EQ(ids_of(together[3]), want[1]);
  }
}

TEST(Embedding, SurvivesPreemption) {
  const RandomModelSpec spec;
  const TemporaryFile file(make_random_model(spec));
  const std::vector<TokenId> tokens = random_tokens(400, spec.vocab, 1);
  const std::vector<float> alone = embed(*open_model(file.path()), tokens, Pooling::kMean);
  const auto roomy = open_model(file.path());
  const std::uint64_t needs = run_together(*roomy, {embedding_of(tokens, Pooling::kMean)}).front().kv.bytes_peak;
  // Room for little more than one; a text of better priority comes when half of the first has been read.
  const auto engine = open_model(file.path(), {.kv_memory = needs + needs / 5, .chunk = 16});
  const auto id = engine->submit(embedding_of(tokens, Pooling::kMean));
  ASSERT_TRUE(id.ok()) << id.status().message();
  for (int pass = 0; pass < 14; ++pass) ASSERT_TRUE(engine->poll().ok());
  RequestOptions better = embedding_of(random_tokens(390, spec.vocab, 2), Pooling::kLast);
  better.priority = -1;
  ASSERT_TRUE(engine->submit(better).ok());
  GenerateResult result;
  while (engine->unfinished() > 0) {
    const auto events = engine->poll();
    ASSERT_TRUE(events.ok());
    for (const Event& event : *events)
      if (event.request == *id && event.kind == Event::Kind::kFinished) result = event.result;
  }
  EXPECT_GE(result.preemptions, 1);
  ASSERT_EQ(result.embedding.size(), alone.size());
  EXPECT_EQ(std::memcmp(result.embedding.data(), alone.data(), alone.size() * sizeof(float)), 0);
}

TEST(Embedding, RefusesWhatNeedsGeneration) {
  const TemporaryFile file(make_random_model(RandomModelSpec()));
  const auto engine = open_model(file.path());
  RequestOptions several = embedding_of({1, 2}, Pooling::kMean);
  several.samples = 2;
  RequestOptions reported = embedding_of({1, 2}, Pooling::kMean);
  reported.generate.prompt_logprobs = 0;
  RequestOptions formal = embedding_of({1, 2}, Pooling::kLast);
  formal.grammar = GrammarSource{};
  for (const RequestOptions& options : {several, reported, formal}) {
    const auto id = engine->submit(options);
    ASSERT_FALSE(id.ok());
    EXPECT_EQ(id.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(id.status().message().find("embedding"), std::string::npos) << id.status().message();
  }
}

}  // namespace
}  // namespace kvasir::test
