// Models with two sets of angles (LongRoPE): a sequence keeps those that suit the length it may reach, and shares
// nothing with sequences of the others. originals_test.cc compares the logits of both with those of transformers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "backend/page_format.h"
#include "kvasir/engine.h"
#include "retention/registry.h"
#include "sequence/context_rules.h"
#include "support/engine_fixture.h"
#include "support/mebibyte.h"
#include "support/originals.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

constexpr std::int64_t kOriginal = 128;  // of the model
const std::string kShort = "f16", kLong = "f16,rope=long";

std::string phi3_long() {
  return original("phi3_long");
}

std::filesystem::path own_folder() {
  return std::filesystem::temp_directory_path() / ("kvasir-long-rotation-" + std::to_string(::getpid()));
}

std::unique_ptr<Engine> open(const std::function<void(EngineOptions&)>& change = {}) {
  EngineOptions options{.model = phi3_long(), .threads = 2, .kv_memory = 8 * kMiB, .chunk = 32};
  if (change) change(options);
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(*engine) : nullptr;
}

RequestOptions request(int prompt, std::int64_t more, const std::string& policy = "full") {
  RequestOptions options;
  for (int i = 0; i < prompt; ++i) options.tokens.push_back(3 + (7 * i * i + 3 * i + 5) % 93);
  options.policy = policy;
  options.generate = {.max_tokens = more, .ignore_eos = true, .sampling = {.temperature = 0}, .logprobs = 3};
  return options;
}

std::map<RequestId, GenerateResult> run_all(Engine& engine) {
  std::map<RequestId, GenerateResult> results;
  while (engine.unfinished() > 0) {
    const auto events = engine.poll();
    EXPECT_TRUE(events.ok()) << events.status().message();
    for (const Event& event : *events) {
      EXPECT_NE(event.kind, Event::Kind::kFailed) << event.status.message();
      if (event.kind == Event::Kind::kFinished) results[event.request] = event.result;
    }
  }
  return results;
}

GenerateResult run(Engine& engine, const RequestOptions& options) {
  const auto id = engine.submit(options);
  EXPECT_TRUE(id.ok()) << id.status().message();
  return id.ok() ? run_all(engine)[*id] : GenerateResult();
}

std::vector<double> log_probabilities(const GenerateResult& result) {
  std::vector<double> all;
  for (const GeneratedToken& choice : result.choices)
    for (const auto& token : choice.likeliest) all.push_back(static_cast<double>(token.log_probability));
  return all;
}

TEST(LongRotation, TheLengthThatARequestMayReachDecides) {
  const auto engine = open();
  struct Case {
    int prompt;
    std::int64_t more;
    std::string policy;
    bool is_long;
  };
  const Case cases[] = {
      {100, 28, "full", false},
      {100, 29, "full", true},
      {1, 127, "full", false},
      {128, 0, "full", false},
      {129, 0, "full", true},
      {20, -1, "full", true},  // as long as the context allows
      // Neither sees tokens further apart than its bound and a chunk.
      {300, 100, "streaming:cap=96", false},
      {300, 100, "streaming:cap=98", true},
      {300, 60, "h2o:budget=64,recent=16,pos=compact", false},
      {300, 60, "h2o:budget=64,recent=16,pos=original", true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.policy + ' ' + std::to_string(c.prompt) + ' ' + std::to_string(c.more));
    const GenerateResult result = run(*engine, request(c.prompt, c.more, c.policy));
    EXPECT_EQ(result.kv.codec, c.is_long ? kLong : kShort);
    const auto plan = engine->plan({.policy = c.policy, .prompt = c.prompt, .max_tokens = c.more});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->codec, result.kv.codec);
  }
  RequestOptions by_name = request(20, 5);
  by_name.codec = kLong;
  EXPECT_EQ(run(*engine, by_name).kv.codec, kLong);
}

// What memory holds bounds a request without a limit of its own.
// Memory would end the answer before the original context does.
TEST(LongRotation, MemoryDoesNotChooseTheAngles) {
  const auto model = load(phi3_long());
  const std::uint64_t memory = KvCache::cost(model->kv_shape, {}, 3);  // fewer than 128 tokens
  const auto engine = open([&](EngineOptions& options) { options.kv_memory = memory; });
  const GenerateResult result = run(*engine, request(20, -1));
  EXPECT_EQ(result.kv.codec, kLong);
  EXPECT_LT(result.kv.seen, kOriginal);
}

TEST(LongRotation, AShortAndALongTextBesideEachOtherHaveTheBitsOfEachAlone) {
  const RequestOptions brief = request(90, 30), lengthy = request(200, 60);
  RequestOptions same_as_long = brief;
  same_as_long.codec = kLong;
  const GenerateResult brief_alone = run(*open(), brief), long_alone = run(*open(), lengthy);
  const GenerateResult other_angles = run(*open(), same_as_long);
  EXPECT_NE(log_probabilities(brief_alone), log_probabilities(other_angles));
  const auto engine = open();
  const auto first = engine->submit(brief), second = engine->submit(lengthy), third = engine->submit(same_as_long);
  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  auto results = run_all(*engine);
  EXPECT_EQ(log_probabilities(results[*first]), log_probabilities(brief_alone));
  EXPECT_EQ(log_probabilities(results[*second]), log_probabilities(long_alone));
  EXPECT_EQ(log_probabilities(results[*third]), log_probabilities(other_angles));
}

TEST(LongRotation, PrefixesServeTheirOwnAnglesAlone) {
  const RequestOptions brief = request(100, 10), lengthy = request(100, 60);
  const GenerateResult cold = run(*open(), lengthy);
  const auto engine = open([](EngineOptions& options) { options.prefix_memory = 4 * kMiB; });
  EXPECT_EQ(run(*engine, brief).cached, 0);
  EXPECT_GE(run(*engine, brief).cached, 64);
  const GenerateResult first = run(*engine, lengthy);
  EXPECT_EQ(first.cached, 0);
  EXPECT_EQ(log_probabilities(first), log_probabilities(cold));
  const GenerateResult again = run(*engine, lengthy);
  EXPECT_GE(again.cached, 64);
  EXPECT_EQ(log_probabilities(again), log_probabilities(cold));
  EXPECT_GE(run(*engine, brief).cached, 64);
}

// The disk has parts of 256 tokens; this model's original context is 512.
TEST(LongRotation, PrefixesOnDiskServeTheirOwnAnglesAlone) {
  const RequestOptions brief = request(300, 10), lengthy = request(300, 300);
  const auto open_anew = [](bool stores) {
    return open([&](EngineOptions& options) {
      options.model = original("phi3_short");
      options.prefix_memory = stores ? 4 * kMiB : 0;
      if (stores) options.prefix_dir = own_folder().string();
    });
  };
  const GenerateResult cold = run(*open_anew(false), lengthy);
  EXPECT_EQ(run(*open_anew(true), brief).kv.codec, kShort);
  const GenerateResult other = run(*open_anew(true), lengthy);
  EXPECT_EQ(other.kv.codec, kLong);
  EXPECT_EQ(other.cached, 0);
  EXPECT_EQ(log_probabilities(other), log_probabilities(cold));
  EXPECT_EQ(run(*open_anew(true), brief).cached, 256);
  const GenerateResult again = run(*open_anew(true), lengthy);
  EXPECT_EQ(again.cached, 256);
  EXPECT_EQ(log_probabilities(again), log_probabilities(cold));
  std::filesystem::remove_all(own_folder());
}

TEST(LongRotation, SessionsForksAndFilesKeepTheirAngles) {
  const std::string path = own_folder().string() + ".session";
  const GenerateOptions generate{.max_tokens = 20, .ignore_eos = true, .sampling = {.temperature = 0}, .logprobs = 3};
  for (const bool is_long : {false, true}) {
    const std::string codec = is_long ? kLong : kShort;
    SCOPED_TRACE(codec);
    const auto engine = open();
    const auto session = engine->new_session({.policy = is_long ? "full" : "streaming:cap=64"});
    ASSERT_TRUE(session.ok()) << session.status().message();
    ASSERT_TRUE((*session)->read(std::string(80, 'x')).ok());
    EXPECT_EQ((*session)->kv().codec, codec);
    const auto fork = (*session)->fork();
    ASSERT_TRUE(fork.ok()) << fork.status().message();
    ASSERT_TRUE((*session)->save(path).ok());
    const auto expected = (*session)->generate(generate, {});
    ASSERT_TRUE(expected.ok()) << expected.status().message();
    EXPECT_EQ(log_probabilities(*(*fork)->generate(generate, {})), log_probabilities(*expected));
    const auto other = open();
    auto loaded = other->load_session(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(loaded->session->kv().codec, codec);
    // A request may name the codec of pages alone, and one with other angles is no part of it.
    const std::shared_ptr<Session> kept = std::move(loaded->session);
    RequestOptions next = request(10, 20, "");
    next.session = kept;
    next.codec = "f16";
    const GenerateResult result = run(*other, next);
    EXPECT_EQ(result.kv.codec, codec);
    // The cache that a long session sized serves short requests too.
    EXPECT_EQ(run(*other, request(20, 5)).kv.codec, kShort);
  }
  std::filesystem::remove(path);
}

TEST(LongRotation, OtherModelsHaveNoSuchCodec) {
  EngineOptions options{.model = source_dir() + "/tests/reference/originals/llama.gguf", .threads = 1};
  options.kv_type = kLong;
  EXPECT_EQ(Engine::open(options).status().code(), StatusCode::kInvalidArgument);
  options.kv_type = "f16";
  options.kv_types = {"q8,rope=long"};
  EXPECT_EQ(Engine::open(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(LongRotation, CodecsNameIt) {
  EXPECT_TRUE(parse_codec(kLong).codec.long_rotation);
  for (const char* name : {"f16,rope=long", "q4,recent=64,rope=long", "k=q8,v=q4,rotate=k,rope=long"}) {
    const KvCodec codec = parse_codec(name).codec;
    EXPECT_EQ(codec_name(codec), name);
    EXPECT_EQ(parse_stored_codec(stored_codec_name(codec)).codec, codec);
  }
  for (const char* name : {"f16,rope=short", "f16,rope=", "f16,rope=long,rope=long"})
    EXPECT_NE(parse_codec(name).error, "") << name;
}

}  // namespace
}  // namespace kvasir::test
