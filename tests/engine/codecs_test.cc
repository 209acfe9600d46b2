// The public library: a codec for each request and each session of one engine.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "kvasir/engine.h"
#include "planning/memory_plan.h"
#include "support/engine_fixture.h"
#include "support/mebibyte.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

std::unique_ptr<Engine> open_with(const std::string& kv_type, std::vector<std::string> kv_types,
                                  std::uint64_t memory = 64 * kMiB) {
  EngineOptions options{.model = small_model(), .threads = 1, .kv_type = kv_type};
  options.kv_types = std::move(kv_types);
  options.kv_memory = memory;
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(*engine) : nullptr;
}

RequestOptions request_in(const std::string& codec, const std::string& policy) {
  RequestOptions options;
  for (int i = 0; i < 40; ++i)
    options.prompt += "The old man went down to the river number " + std::to_string(i) + ". ";
  options.policy = policy;
  options.codec = codec;
  options.generate = {.max_tokens = 30, .ignore_eos = true, .sampling = {.temperature = 0}, .logprobs = 3};
  return options;
}

std::map<RequestId, GenerateResult> run_all(Engine& engine) {
  std::map<RequestId, GenerateResult> results;
  while (engine.unfinished() > 0) {
    const auto events = engine.poll();
    EXPECT_TRUE(events.ok()) << events.status().message();
    for (const Event& event : *events)
      if (event.kind == Event::Kind::kFinished) results[event.request] = event.result;
  }
  return results;
}

GenerateResult run_one(Engine& engine, const RequestOptions& options) {
  const auto id = engine.submit(options);
  EXPECT_TRUE(id.ok()) << id.status().message();
  return run_all(engine)[*id];
}

void expect_same_bits(const GenerateResult& a, const GenerateResult& b) {
  EXPECT_EQ(a.text, b.text);
  ASSERT_EQ(a.choices.size(), b.choices.size());
  for (std::size_t i = 0; i < a.choices.size(); ++i)
    for (std::size_t j = 0; j < a.choices[i].likeliest.size(); ++j)
      EXPECT_EQ(a.choices[i].likeliest[j].log_probability, b.choices[i].likeliest[j].log_probability);
  EXPECT_EQ(a.kv.codec, b.kv.codec);
  EXPECT_EQ(a.kv.bytes, b.kv.bytes);
  EXPECT_EQ(a.kv.bytes_peak, b.kv.bytes_peak);
}

const std::vector<std::string>& codecs_in_use() {
  static const std::vector<std::string> codecs = {"f16", "i16", "q8", "q4", "k=q8,v=q4"};
  return codecs;
}

TEST(RequestCodecs, EachAmongTheOthersHasTheBitsAndBytesOfItsOwnEngine) {
  const auto engine = open_with("f16", {"i16", "q8", "q4", "k=q8,v=q4"});
  std::map<RequestId, RequestOptions> asked;
  for (const std::string policy : {"full", "h2o:budget=64,recent=16", "streaming:sinks=4,window=60"})
    for (const std::string& codec : codecs_in_use()) {
      const RequestOptions options = request_in(codec, policy);
      const auto id = engine->submit(options);
      ASSERT_TRUE(id.ok()) << id.status().message();
      asked[*id] = options;
    }
  std::map<RequestId, GenerateResult> results = run_all(*engine);
  EXPECT_EQ(engine->cache().bytes, 0u);
  ASSERT_EQ(results.size(), asked.size());
  for (auto [id, options] : asked) {
    SCOPED_TRACE(options.policy + ' ' + options.codec);
    const auto alone = open_with(options.codec, {});
    EXPECT_EQ(results[id].kv.codec, options.codec);
    options.codec = "";
    expect_same_bits(results[id], run_one(*alone, options));
  }
}

// The plan of a codec is the same in an engine of that codec and in one that allows it, and is what the request takes.
TEST(RequestCodecs, ThePlanIsThatOfTheCodec) {
  const auto engine = open_with("f16", {"i16", "q8", "q4", "k=q8,v=q4"});
  ASSERT_TRUE(engine->new_session({.policy = "full"}).ok());
  for (const std::string& codec : codecs_in_use()) {
    SCOPED_TRACE(codec);
    const RequestOptions options = request_in(codec, "full");
    const std::uint64_t peak_before = engine->cache().bytes;
    EXPECT_EQ(peak_before, 0u);
    const GenerateResult result = run_one(*engine, options);
    const PlanRequest asked{
        .policy = "full", .codec = codec, .prompt = result.prompt_tokens, .max_tokens = options.generate.max_tokens};
    const auto plan = engine->plan(asked);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->codec, codec);
    EXPECT_LE(result.kv.bytes_peak, plan->bytes);
    if (codec == "f16" || codec == "i16") {
      EXPECT_TRUE(plan->exact);
      // The last token is not run.
      EXPECT_NEAR(static_cast<double>(result.kv.bytes_peak), static_cast<double>(plan->bytes), 20000);
    }
    const auto alone = open_with(codec, {});
    ASSERT_TRUE(alone->new_session({.policy = "full"}).ok());
    PlanRequest same = asked;
    same.codec = "";
    const auto other = alone->plan(same);
    EXPECT_EQ(plan->bytes, other->bytes);
    EXPECT_EQ(plan->bytes_per_token, other->bytes_per_token);
    EXPECT_EQ(plan->pages, other->pages);
    EXPECT_EQ(plan->page_bytes, other->page_bytes);
  }
}

TEST(RequestCodecs, WhatIsNotAllowedIsRefusedWithWhatIs) {
  const auto engine = open_with("q8", {"q4", "k=q8,v=q4", "q8"});
  const auto refusal = [&](const std::string& codec) { return engine->submit(request_in(codec, "full")).status(); };
  EXPECT_EQ(refusal("q2").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal("q2").message(), "the KV codec 'q2' is not allowed here; choose one of these: q8; q4; k=q8,v=q4");
  EXPECT_EQ(refusal("q2").settings(), std::vector<std::string_view>{"codec"});
  EXPECT_EQ(refusal("q8,recent=64").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal("q7").message(), "'q7' is no KV codec; choose one of these: q8; q4; k=q8,v=q4");
  EXPECT_EQ(refusal("q7").settings(), std::vector<std::string_view>{"codec"});
  EXPECT_EQ(engine->new_session({.policy = "full", .codec = "f16"}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->plan({.policy = "full", .codec = "f16", .prompt = 10}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->unfinished(), 0);
  EXPECT_EQ(run_one(*engine, request_in("v=q4,k=q8", "full")).kv.codec, "k=q8,v=q4");

  EngineOptions many{.model = small_model(), .threads = 1};
  many.kv_types = {"q8", "q7"};
  EXPECT_EQ(Engine::open(many).status().settings(), std::vector<std::string_view>{"kv_types"});
  many.kv_types = {"q8", "q4", "q4o", "q3", "q2", "f32", "bf16"};
  EXPECT_EQ(Engine::open(many).status().message(),
            "there are 7 KV types beside the server's own, and it can have at most 6; allow fewer");
  many.kv_types.pop_back();
  const auto most = Engine::open(many);
  ASSERT_TRUE(most.ok());
  EXPECT_TRUE((*most)->new_session({.policy = "streaming:sinks=4,window=60", .codec = "f32"}).ok());
  for (const std::string& codec : many.kv_types)
    EXPECT_EQ(run_one(**most, request_in(codec, "streaming:sinks=4,window=60")).kv.codec, codec);
}

// "auto" is i16 with the kernels that multiply its integers; texts may have what it is elsewhere, too.
TEST(RequestCodecs, AutomaticIsTheFasterOne) {
  const std::string policy = "streaming:sinks=4,window=60";
  for (const std::string isa : {"generic", "avx2", "avx512", "amx"}) {
    const auto engine = Engine::open({.model = small_model(), .threads = 1, .isa = isa, .kv_type = "auto"});
    if (!engine.ok()) {
      EXPECT_EQ(engine.status().settings(), std::vector<std::string_view>{"isa"});
      continue;  // the machine lacks the instructions
    }
    const bool words = isa == "avx2" || isa == "avx512";
    const std::string own = words ? "i16" : "f16", other = words ? "f16" : "i16";
    EXPECT_EQ(run_one(**engine, request_in("", policy)).kv.codec, own) << isa;
    EXPECT_EQ((*engine)->plan({.policy = policy, .prompt = 10})->codec, own) << isa;
    EXPECT_EQ(run_one(**engine, request_in(other, policy)).kv.codec, other) << isa;
    EXPECT_FALSE((*engine)->new_session({.policy = policy, .codec = "q8"}).ok()) << isa;
  }
}

TEST(RequestCodecs, ASessionKeepsItsOwn) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("kvasir-codecs-" + std::to_string(::getpid()) + ".session")).string();
  const std::string policy = "streaming:sinks=4,window=60";
  const GenerateOptions greedy{.max_tokens = 20, .ignore_eos = true, .sampling = {.temperature = 0}};
  const auto engine = open_with("f16", {"q4"});
  std::shared_ptr<Session> session = *engine->new_session({.policy = policy, .codec = "q4"});
  ASSERT_TRUE(session->read(request_in("", "").prompt).ok());
  EXPECT_EQ(session->kv().codec, "q4");
  ASSERT_TRUE(session->save(path).ok());
  const std::string expected = (*session->generate(greedy, {})).text;

  RequestOptions more = request_in("f16", policy);
  more.session = session;
  EXPECT_EQ(engine->submit(more).status().message(),
            "the session is stored in the KV codec 'q4', not 'f16'; name that one or none");
  more.codec = "q4";
  EXPECT_EQ(run_one(*engine, more).kv.codec, "q4");

  // Another engine takes the file if it allows its codec.
  const auto other = open_with("q8", {"f16", "q4"});
  ASSERT_TRUE(other->new_session({.policy = "full"}).ok());
  const auto loaded = other->load_session(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->session->kv().codec, "q4");
  EXPECT_EQ((*loaded->session->generate(greedy, {})).text, expected);
  const auto opened = other->open_session(path);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ((*opened->session->generate(greedy, {})).text, expected);
  const auto without = open_with("f16", {"q8"});
  ASSERT_TRUE(without->new_session({.policy = "full"}).ok());
  EXPECT_EQ(without->load_session(path).status().message(),
            "the session file has q4 pages of 32 tokens, but here are f16 or q8 pages of 32; load it where its own are "
            "used (kvasir run --load does)");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace kvasir::test
