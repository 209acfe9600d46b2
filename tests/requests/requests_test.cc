// The public library: requests beside sessions, and the KV reports of both.
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "kvasir/engine.h"
#include "planning/memory_plan.h"
#include "sequence/policy_cases.h"
#include "support/engine_fixture.h"
#include "support/mebibyte.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

std::string tale(int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i) text += "The old man went down to the river number " + std::to_string(i) + ". ";
  return text;
}

struct Answer {
  std::string text;  // of the events
  int pieces = 0;
  bool ended = false;
  Event last;
};
using Answers = std::map<std::pair<RequestId, int>, Answer>;

class RequestsTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Engine> open(EngineOptions options = {}) {
    options.model = small_model();
    options.threads = 1;
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? std::move(*engine) : nullptr;
  }
  static RequestId submit(Engine& engine, const RequestOptions& options) {
    const auto id = engine.submit(options);
    EXPECT_TRUE(id.ok()) << id.status().message();
    return id.ok() ? *id : RequestId{};
  }
  // Returns the number of events.
  static std::size_t poll(Engine& engine, Answers* answers) {
    const auto events = engine.poll();
    EXPECT_TRUE(events.ok()) << events.status().message();
    if (!events.ok()) return 0;
    for (const Event& event : *events) {
      Answer& answer = (*answers)[{event.request, event.sample}];
      EXPECT_FALSE(answer.ended);
      answer.text += event.text;
      answer.pieces += event.kind == Event::Kind::kText ? 1 : 0;
      answer.ended = event.kind == Event::Kind::kFinished || event.kind == Event::Kind::kFailed;
      answer.last = event;
    }
    return events->size();
  }
  static Answers drain(Engine& engine, Answers answers = {}) {
    while (engine.unfinished() > 0) poll(engine, &answers);
    EXPECT_EQ(poll(engine, &answers), 0u);
    return answers;
  }
  static std::vector<GenerateResult> by_session(const RequestOptions& options, EngineOptions of_engine = {}) {
    const auto engine = open(of_engine);
    auto session = engine->new_session({.policy = options.policy, .sequences = options.samples + 1});
    EXPECT_TRUE(session.ok()) << session.status().message();
    Status read;
    if (!options.prompt.empty()) read = (*session)->read(options.prompt);
    for (const Message& message : options.messages)
      if (read.ok()) read = (*session)->say(message.role, message.content);
    EXPECT_TRUE(read.ok()) << read.message();
    if (options.samples == 1) return {*(*session)->generate(options.generate, {})};
    return *(*session)->sample(options.generate, options.samples, {});
  }
};

std::vector<RequestOptions> several_requests() {
  const GenerateOptions greedy{.max_tokens = 40, .sampling = {.temperature = 0}};
  const auto seeded = [](std::uint64_t seed) {
    return GenerateOptions{.max_tokens = 30, .ignore_eos = true, .sampling = {.seed = seed}};
  };
  std::vector<RequestOptions> requests = {
      {.prompt = tale(30), .policy = "full", .generate = greedy},
      {.prompt = "Once upon a time", .generate = seeded(5)},
      {.messages = {{"system", "You are a poet."}, {"user", "Who are you?"}}, .generate = greedy},
      {.prompt = tale(40), .policy = "streaming:sinks=4,window=60", .generate = seeded(6), .samples = 3},
      {.prompt = tale(20), .policy = "h2o:budget=64,recent=16", .generate = seeded(7)},
      {.messages = {{"user", "Tell me of the sea."}, {"assistant", "It is deep."}, {"user", "More."}},
       .policy = "tova:budget=50",
       .generate = seeded(8)},
      {.prompt = tale(25), .policy = "snapkv:budget=64+streaming:sinks=4,window=60", .generate = greedy},
  };
  requests[1].generate.stop = {"the"};
  return requests;
}

TEST_F(RequestsTest, HaveTheTextOfASessionAlone) {
  const std::vector<RequestOptions> requests = several_requests();
  const auto engine = open({.kv_memory = 64 * kMiB});
  std::vector<RequestId> ids;
  Answers answers;
  for (const RequestOptions& request : requests) {
    ids.push_back(submit(*engine, request));
    for (int i = 0; i < 3; ++i) poll(*engine, &answers);
  }
  EXPECT_EQ(engine->unfinished(), static_cast<std::int64_t>(requests.size()));
  answers = drain(*engine, std::move(answers));
  EXPECT_EQ(engine->cache().bytes, 0u);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    const std::vector<GenerateResult> alone = by_session(requests[i], {.kv_memory = 64 * kMiB});
    ASSERT_EQ(static_cast<int>(alone.size()), requests[i].samples);
    for (int sample = 0; sample < requests[i].samples; ++sample) {
      const GenerateResult& expected = alone[static_cast<std::size_t>(sample)];
      const Answer& answer = answers[{ids[i], sample}];
      ASSERT_EQ(answer.last.kind, Event::Kind::kFinished) << answer.last.status.message();
      const GenerateResult& result = answer.last.result;
      EXPECT_EQ(answer.text, expected.text);
      EXPECT_EQ(result.text, expected.text);
      EXPECT_EQ(result.tokens, expected.tokens);
      EXPECT_EQ(result.prompt_tokens, expected.prompt_tokens);
      EXPECT_EQ(result.finish_reason, expected.finish_reason);
      EXPECT_EQ(result.kv.policy, expected.kv.policy);
      EXPECT_EQ(result.kv.seen, expected.kv.seen);
      EXPECT_EQ(result.kv.kept, expected.kv.kept);
      EXPECT_GT(result.prompt_seconds, 0);
      EXPECT_GE(answer.pieces, result.tokens > 1 ? 2 : 0) << "it did not stream";
    }
  }
}

TEST_F(RequestsTest, TokenIdsAreReadAsTheyStand) {
  const auto model = load(small_model(), {.threads = 1});
  const auto tokens = *model->tokenizer->encode("Once upon a time", {.add_special = true});
  const auto engine = open();
  const GenerateOptions greedy{.max_tokens = 10, .ignore_eos = true, .sampling = {.temperature = 0}};
  const RequestId id = submit(*engine, {.tokens = tokens, .generate = greedy});
  EXPECT_EQ(drain(*engine)[std::pair(id, 0)].text,
            by_session({.prompt = "Once upon a time", .generate = greedy}).front().text);
}

// Sized by the first request alone, or too small for two: they take turns.
TEST_F(RequestsTest, WaitForEachOtherWhereMemoryIsShort) {
  const std::vector<RequestOptions> requests = several_requests();
  for (const EngineOptions& options : {EngineOptions{.kv_memory = 5 * kMiB}, EngineOptions{}}) {
    const auto engine = open(options);
    std::vector<RequestId> ids;
    for (const RequestOptions& request : requests) ids.push_back(submit(*engine, request));
    Answers answers = drain(*engine);
    EXPECT_LE(engine->cache().bytes_peak, engine->cache().budget);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].policy.empty()) continue;  // by default, as large as the memory
      SCOPED_TRACE(i);
      const std::vector<GenerateResult> alone = by_session(requests[i], {.kv_memory = 64 * kMiB});
      for (int sample = 0; sample < requests[i].samples; ++sample)
        EXPECT_EQ(answers[std::pair(ids[i], sample)].text, alone[static_cast<std::size_t>(sample)].text);
    }
  }
}

TEST_F(RequestsTest, WhatIsRefusedLeavesNothingBehind) {
  const auto model = load(small_model(), {.threads = 1});
  struct Case {
    RequestOptions options;
    StatusCode code;
    std::string says;
    std::string_view setting;
  };
  const RequestOptions good{.prompt = "Once", .policy = "full", .generate = {.max_tokens = 3}};
  const auto with = [&](auto change) {
    RequestOptions options = good;
    change(options);
    return options;
  };
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  const Case cases[] = {
      {with([](auto& o) { o.prompt = ""; }), kInvalid, "none of them", "prompt"},
      {with([](auto& o) { o.tokens = {1}; }), kInvalid, "more than one", "prompt"},
      {with([](auto& o) { o.prompt = "caf\xe9"; }), kInvalid, "UTF-8", "prompt"},
      {with([](auto& o) {
         o.prompt = "", o.tokens = {1, 5, -1};
       }),
       kInvalid, "token id -1 at index 2", "tokens"},
      {with([](auto& o) { o.prompt = "", o.tokens = {1 << 20}; }), kInvalid, "outside the vocabulary of", "tokens"},
      {with([](auto& o) {
         o.prompt = "", o.messages = {{"nobody", "hello"}};
       }),
       kInvalid, "nobody", "messages"},
      {with([](auto& o) { o.policy = "nope"; }), kInvalid, "nope", "policy"},
      {with([](auto& o) { o.policy = "h2o:budget=100000"; }), kInvalid, "trained context", "policy"},
      {with([](auto& o) { o.samples = 65; }), kInvalid, "samples=65 is outside 1 to 64", "samples"},
      {with([](auto& o) { o.generate.stop = {""}; }), kInvalid, "stop", "stop"},
      {with([](auto& o) { o.generate.sampling.top_p = 2; }), kInvalid, "top_p", "top_p"},
      {with([](auto& o) { o.prompt = tale(900); }), StatusCode::kResourceExhausted,
       "maximum context length is 2048 tokens", "policy"},
      {with([](auto& o) { o.prompt = tale(60); }), StatusCode::kResourceExhausted, "but the KV memory has 1048576",
       "kv_memory"},
  };
  for (const bool first : {true, false}) {
    const auto engine = open({.kv_memory = kMiB});
    if (!first) {
      submit(*engine, good);
      drain(*engine);
    }
    for (const Case& wrong : cases) {
      const Status status = engine->submit(wrong.options).status();
      EXPECT_EQ(status.code(), wrong.code) << status.message();
      EXPECT_NE(status.message().find(wrong.says), std::string::npos) << status.message();
      EXPECT_EQ(status.settings().empty() ? "" : status.settings().front(), wrong.setting) << status.message();
      EXPECT_EQ(engine->unfinished(), 0);
      EXPECT_EQ(engine->cache().bytes, 0u);
      EXPECT_EQ(engine->cache().budget, first ? 0 : kMiB) << "it sized the cache";
    }
    EXPECT_EQ(engine->cancel(RequestId{77}).code(), StatusCode::kNotFound);
    EXPECT_TRUE(engine->poll()->empty());
    const RequestId id = submit(*engine, good);
    EXPECT_EQ(drain(*engine)[std::pair(id, 0)].last.result.tokens, 3);
  }
}

std::vector<std::int32_t> some_tokens(int count) {
  return random_tokens(count, small_spec().vocab, 3);
}

// A prompt is refused exactly where its policy could not hold it with the whole cache for itself.
TEST_F(RequestsTest, APromptIsRefusedOnlyWhereItCanNeverFit) {
  RandomModelSpec plain = small_spec();
  plain.context = 1000;
  RandomModelSpec windowed = plain;
  windowed.sliding_window = 23;
  std::vector<std::pair<RandomModelSpec, std::string>> cases = {{windowed, "full"}, {plain, "full"}};
  for (const PolicyCases& policies : all_policy_cases())
    for (const std::string& policy : policies.evicting)
      if ((*make_policy(policy))->traits().holds_prompts) cases.emplace_back(plain, policy);
  EXPECT_GT(cases.size(), 5u);
  for (const auto& [spec, policy] : cases) {
    SCOPED_TRACE(policy + (spec.sliding_window > 0 ? " windowed" : ""));
    const TemporaryFile file(make_random_model(spec));
    EngineOptions options{.model = file.path(), .threads = 1, .page_slots = 16, .chunk = 32};
    const auto model = load(file.path(), options);
    const RequestOptions request{.tokens = some_tokens(300), .policy = policy, .generate = {.max_tokens = 1}};
    options.kv_memory = plan_kv_memory(model->kv_shape, **make_policy(policy), {300, 300, 32, 1}).bytes;
    auto engine = std::move(*Engine::open(options));
    const RequestId id = submit(*engine, request);
    int read = 0;
    while (engine->unfinished() > 0) {
      const auto events = engine->poll();
      ASSERT_TRUE(events.ok());
      for (const Event& event : *events) {
        EXPECT_EQ(event.request, id);
        EXPECT_NE(event.kind, Event::Kind::kFailed) << event.status.message();
        if (event.kind == Event::Kind::kPrompt) read = static_cast<int>(event.done);
      }
    }
    EXPECT_EQ(read, 300);
    // A column less than all its tokens take, or those in the window and a chunk.
    const int columns = spec.sliding_window > 0 ? 3 : 18;
    options.kv_memory = KvCache::cost(model->kv_shape, sequence_layout(**make_policy(policy)), columns);
    engine = std::move(*Engine::open(options));
    EXPECT_EQ(engine->submit(request).status().code(), StatusCode::kResourceExhausted);
  }
}

// A session's call moves no request, and takes no pages from them; nor do they from a session.
TEST_F(RequestsTest, SessionsAndRequestsShareACache) {
  const RequestOptions options{.prompt = tale(20),
                               .policy = "full",
                               .generate = {.max_tokens = 30, .ignore_eos = true, .sampling = {.temperature = 0}}};
  const std::string expected = by_session(options).front().text;
  const auto engine = open({.kv_memory = 16 * kMiB});
  const RequestId id = submit(*engine, options);
  Answers answers;
  for (int i = 0; i < 5; ++i) poll(*engine, &answers);
  const std::uint64_t before = engine->cache().bytes;
  EXPECT_GT(before, 0u);
  {
    const auto session = std::move(*engine->new_session({.policy = "full"}));
    ASSERT_TRUE(session->read(options.prompt).ok());
    EXPECT_EQ(session->generate(options.generate, {})->text, expected);
    EXPECT_EQ(engine->cache().bytes, before + session->kv().bytes);
    EXPECT_EQ(engine->unfinished(), 1);
  }
  EXPECT_EQ(engine->cache().bytes, before);
  EXPECT_EQ(drain(*engine, std::move(answers))[std::pair(id, 0)].text, expected);
}

TEST_F(RequestsTest, EndWhereSessionsHoldTheMemory) {
  const auto engine = open({.kv_memory = kMiB});
  const auto session = std::move(*engine->new_session({.policy = "full"}));
  Status read;
  while (read.ok()) read = session->read(" and then");
  EXPECT_EQ(read.code(), StatusCode::kResourceExhausted) << read.message();
  const RequestId id = submit(*engine, {.prompt = tale(5), .policy = "full"});
  Answers answers = drain(*engine);
  const Event& last = answers[std::pair(id, 0)].last;
  EXPECT_EQ(last.kind, Event::Kind::kFinished);
  EXPECT_EQ(last.result.finish_reason, FinishReason::kKvMemory);
  EXPECT_EQ(last.result.kv.seen, 0);
  EXPECT_EQ(last.status.code(), StatusCode::kResourceExhausted);
}

// A report is of its own text; alone in a cache, the two agree to the byte.
TEST_F(RequestsTest, ReportsAreOfTheirOwnText) {
  for (const char* policy : {"full", "streaming:sinks=4,window=60", "h2o:budget=64,recent=16", "tova:budget=50",
                             "cascade:size=64,n=4,sinks=4", "snapkv:budget=64,window=8"}) {
    SCOPED_TRACE(policy);
    const auto engine = open({.kv_memory = 64 * kMiB});
    const auto session = std::move(*engine->new_session({.policy = policy}));
    ASSERT_TRUE(session->read(tale(40)).ok());
    const GenerateOptions generate{.max_tokens = 50, .ignore_eos = true, .sampling = {.seed = 3}};
    const KvReport one = session->generate(generate, {})->kv;
    EXPECT_EQ(one.bytes, engine->cache().bytes);
    EXPECT_EQ(one.bytes_peak, engine->cache().bytes_peak);
    EXPECT_EQ(one.budget, engine->cache().budget);
    const auto samples = session->sample(generate, 3, {});
    ASSERT_TRUE(samples.ok());
    EXPECT_EQ(session->kv().bytes_peak, one.bytes_peak) << "of its samples";
    for (const GenerateResult& sample : *samples) {
      EXPECT_EQ(sample.kv.seen, one.seen + 50);
      EXPECT_LT(sample.kv.bytes, engine->cache().bytes_peak);
      EXPECT_GE(sample.kv.bytes_peak, sample.kv.bytes);
    }
    const auto fork = std::move(*session->fork());
    EXPECT_LE(fork->kv().bytes, one.bytes);
    EXPECT_LT(engine->cache().bytes, fork->kv().bytes + session->kv().bytes) << "shared pages count once there";
    const auto other = std::move(*engine->new_session({.policy = policy}));
    EXPECT_EQ(other->kv().bytes, 0u);
  }
}

TEST_F(RequestsTest, EndWithTheirEngine) {
  auto engine = open();
  submit(*engine, {.prompt = tale(20)});
  Answers answers;
  poll(*engine, &answers);
  engine.reset();
}

}  // namespace
}  // namespace kvasir::test
