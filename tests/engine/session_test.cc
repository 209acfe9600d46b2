// The public library: Engine and Session.
#include <gtest/gtest.h>

#include "kvasir/engine.h"
#include "support/engine_fixture.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

const GenerateOptions kGreedy{.max_tokens = 30, .ignore_eos = true, .sampling = {.temperature = 0}};

std::string long_text() {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "The old man went down to the river number " + std::to_string(i) + ". ";
  return text;
}

class SessionTest : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> open(EngineOptions options = {}) {
    options.model = small_model();
    if (options.threads == 0) options.threads = 1;
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? std::move(*engine) : nullptr;
  }
  static std::unique_ptr<Session> session(Engine& engine, const std::string& policy = "") {
    auto made = engine.new_session({.policy = policy});
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::move(*made) : nullptr;
  }
  static GenerateResult generate(Session& session, const GenerateOptions& options = kGreedy) {
    auto result = session.generate(options, {});
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? *result : GenerateResult{};
  }
};

TEST_F(SessionTest, ForksWriteTheSameText) {
  const auto engine = open({.kv_memory = std::uint64_t{64} << 20});
  for (const char* policy :
       {"full", "streaming:sinks=4,window=124", "streaming:sinks=4,window=124,realign=rotate,every=8"}) {
    const auto trunk = session(*engine, policy);
    ASSERT_TRUE(trunk->read(long_text()).ok());
    auto fork = trunk->fork();
    ASSERT_TRUE(fork.ok()) << fork.status().message();
    const GenerateResult first = generate(*trunk);
    const GenerateResult second = generate(**fork);
    EXPECT_FALSE(first.text.empty());
    EXPECT_EQ(first.text, second.text) << policy;
    EXPECT_EQ(first.kv.kept, second.kv.kept);
    EXPECT_EQ(first.kv.seen, second.kv.seen);
    // A fork of a session that has already written goes on like it, and outlives it.
    auto later = trunk->fork();
    ASSERT_TRUE(later.ok());
    const GenerateResult third = generate(*trunk);
    EXPECT_EQ(generate(**later).text, third.text) << policy;
    EXPECT_NE(third.text, first.text);
  }
}

TEST_F(SessionTest, SessionsOutliveTheirEngine) {
  auto engine = open();
  const auto one = session(*engine);
  engine.reset();
  ASSERT_TRUE(one->read("Once upon a time").ok());
  EXPECT_EQ(generate(*one).tokens, 30);
}

// A stop string ends an answer and is no part of its text. The model wrote it all the same: the context keeps it, and
// what follows is what would follow the whole text.
TEST_F(SessionTest, AStopStringStaysInTheContext) {
  const auto engine = open();
  const auto stopped = session(*engine);
  const auto counted = session(*engine);
  for (Session* each : {stopped.get(), counted.get()}) ASSERT_TRUE(each->read("Once upon a time there was").ok());
  GenerateOptions with_stop = kGreedy;
  with_stop.stop = {" the"};
  const GenerateResult answer = generate(*stopped, with_stop);
  ASSERT_EQ(answer.finish_reason, FinishReason::kStop) << answer.text;
  GenerateOptions as_many = kGreedy;
  as_many.max_tokens = answer.tokens;
  const GenerateResult whole = generate(*counted, as_many);
  EXPECT_TRUE(whole.text.starts_with(answer.text + " the")) << whole.text;
  EXPECT_EQ(answer.kv.seen, whole.kv.seen);
  EXPECT_EQ(generate(*stopped).text, generate(*counted).text);
}

// A second read continues the text as it stands: no second BOS, and the tokens of the second part are its own.
TEST_F(SessionTest, ReadingInPartsContinues) {
  const auto engine = open();
  const auto parts = session(*engine);
  ASSERT_TRUE(parts->read("Once upon a time").ok());
  const std::int64_t first = parts->kv().seen;
  ASSERT_TRUE(parts->read("\nthere was").ok());
  const std::int64_t both = parts->kv().seen;
  EXPECT_GT(both, first);
  const GenerateResult result = generate(*parts);
  EXPECT_EQ(result.prompt_tokens, both);
  EXPECT_EQ(result.kv.seen, both + 30);
  // What a generation wrote belongs to the context; the next reports its own prompt alone.
  ASSERT_TRUE(parts->read(" and then").ok());
  const std::int64_t after = parts->kv().seen;
  EXPECT_EQ(generate(*parts).prompt_tokens, after - both - 30);
  // Generating twice equals generating once.
  const auto once = session(*engine);
  const auto twice = session(*engine);
  ASSERT_TRUE(once->read("Once upon a time").ok());
  ASSERT_TRUE(twice->read("Once upon a time").ok());
  GenerateOptions half = kGreedy;
  half.max_tokens = 15;
  const std::string begin = generate(*twice, half).text;
  EXPECT_EQ(begin + generate(*twice, half).text, generate(*once).text);
}

TEST_F(SessionTest, ErrorsLeaveTheSessionUsable) {
  const auto engine = open();
  const auto clean = session(*engine, "full");
  const auto tried = session(*engine, "full");
  EXPECT_EQ(tried->generate(kGreedy, {}).status().code(), StatusCode::kInvalidArgument) << "nothing to continue";
  EXPECT_EQ(tried->read("caf\xe9").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tried->kv().seen, 0);
  std::string endless;
  while (endless.size() < 40000) endless += long_text();
  EXPECT_EQ(tried->read(endless).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(tried->kv().seen, 0);
  ASSERT_TRUE(clean->read("Once upon a time").ok());
  ASSERT_TRUE(tried->read("Once upon a time").ok());
  EXPECT_EQ(tried->read("\xff").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tried->read("").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tried->read(endless).code(), StatusCode::kResourceExhausted);
  for (const GenerateOptions& wrong :
       {GenerateOptions{.max_tokens = -2}, GenerateOptions{.stop = {""}},
        GenerateOptions{.sampling = {.temperature = -1}}, GenerateOptions{.sampling = {.top_p = 0}}})
    EXPECT_EQ(tried->generate(wrong, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(generate(*tried).text, generate(*clean).text);
  EXPECT_EQ(engine->new_session({.policy = "nope"}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(session(*engine), nullptr);
}

TEST_F(SessionTest, TheBudgetEndsAReadAndTheSessionGoesOn) {
  const auto plenty = open({.chunk = 64});
  const auto probe = session(*plenty, "full");
  ASSERT_TRUE(probe->read(long_text()).ok());
  // The text alone would fit: what never can is refused before anything is read.
  const auto engine = open({.kv_memory = probe->kv().bytes_peak * 3 / 2, .chunk = 64});
  const auto holder = session(*engine, "full");
  ASSERT_TRUE(holder->read(long_text()).ok());
  const std::uint64_t left = engine->cache().budget - engine->cache().bytes;
  const auto one = session(*engine, "full");
  EXPECT_EQ(one->read(long_text()).code(), StatusCode::kResourceExhausted);
  const KvReport after = one->kv();
  EXPECT_GT(after.seen, 64) << "what was read before stays";
  EXPECT_EQ(after.seen % 64, 0);
  EXPECT_LE(after.bytes_peak, left);
  EXPECT_EQ(one->generate(kGreedy, {}).status().code(), StatusCode::kInvalidArgument) << "its text was not read";
  const auto other = session(*engine, "streaming:sinks=4,window=28");
  EXPECT_EQ(other->read(long_text()).code(), StatusCode::kResourceExhausted) << "the first ones hold the memory";
}

TEST_F(SessionTest, TheCacheOfTheFirstSessionRefusesALargerPolicy) {
  const auto engine = open();
  const auto first = session(*engine, "streaming:sinks=4,window=60");
  const Status status = engine->new_session({.policy = "streaming:sinks=4,window=1020"}).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("more KV memory"), std::string::npos) << status.message();
  EXPECT_NE(session(*engine, "streaming:sinks=4,window=28"), nullptr);
}

TEST_F(SessionTest, ACallbackThatSaidStopHearsNoMore) {
  const auto engine = open();
  const auto one = session(*engine);
  ASSERT_TRUE(one->read("Once upon a time").ok());
  int calls = 0;
  std::string heard;
  GenerateOptions options = kGreedy;
  options.stop = {" never comes this text", "e never", ". never"};
  const auto result = one->generate(options, [&](std::string_view text) {
    ++calls;
    heard += text;
    return false;
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(result->text, heard);
}

TEST_F(SessionTest, CallbacksCancel) {
  const auto engine = open({.chunk = 64});
  const auto one = session(*engine);
  int calls = 0;
  auto result = one->read("Once upon a time");
  ASSERT_TRUE(result.ok());
  std::string heard;
  const auto cancelled = one->generate(kGreedy, [&](std::string_view text) {
    heard += text;
    return ++calls < 4;
  });
  ASSERT_TRUE(cancelled.ok());
  EXPECT_EQ(cancelled->finish_reason, FinishReason::kCancelled);
  EXPECT_LT(cancelled->tokens, 30);
  EXPECT_EQ(cancelled->text, heard);
  GenerateOptions rest = kGreedy;
  rest.max_tokens = 30 - cancelled->tokens;
  const auto whole = session(*engine);
  ASSERT_TRUE(whole->read("Once upon a time").ok());
  EXPECT_EQ(heard + generate(*one, rest).text, generate(*whole).text);

  const auto reader = session(*engine);
  std::int64_t last = 0;
  const Status stopped = reader->read(long_text(), [&](std::int64_t done, std::int64_t total) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, total);
    last = done;
    return done < 128;
  });
  EXPECT_EQ(stopped.code(), StatusCode::kCancelled);
  EXPECT_EQ(reader->kv().seen, 128);
  ASSERT_TRUE(reader->read(" and so it ended").ok());
  EXPECT_EQ(generate(*reader).tokens, 30);
}

TEST_F(SessionTest, ForgottenSaysWhatIsGone) {
  const auto engine = open();
  const auto one = session(*engine, "streaming:sinks=4,window=60");
  ASSERT_TRUE(one->read("Once upon a time").ok());
  EXPECT_EQ(one->forgotten().dropped, 0);
  ASSERT_TRUE(one->read(long_text()).ok());
  const KvReport kv = one->kv();
  EXPECT_EQ(kv.kept, 64);
  EXPECT_EQ(one->forgotten().first, 4);
  EXPECT_EQ(one->forgotten().dropped, kv.seen - 64);
}

TEST_F(SessionTest, TextAndCallbackAgreeAndAreWhole) {
  const auto engine = open();
  const auto one = session(*engine);
  ASSERT_TRUE(one->read("Once upon a time").ok());
  std::string heard;
  GenerateOptions hot{.max_tokens = 300,
                      .ignore_eos = true,
                      .sampling = {.temperature = 20, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 7}};
  const auto result = one->generate(hot, [&](std::string_view text) {
    heard += text;
    return true;
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->text, heard);
  EXPECT_EQ(result->seed, 7u);
  // Even random bytes leave as valid UTF-8.
  EXPECT_TRUE(session(*engine)->read(heard).ok());
}

// Without a bound known before, it is the tokens held that have to fit the trained context (2,048), not those seen.
TEST_F(SessionTest, PoliciesWithoutBoundOutliveTheContext) {
  const auto engine = open({.kv_memory = std::uint64_t{64} << 20});
  std::string text;
  for (int i = 0; i < 5; ++i) text += long_text();
  GenerateOptions options = kGreedy;
  for (const char* policy : {"lethe:tau=5,start=64", "h2o:budget=10%,recent=20"}) {
    const auto one = session(*engine, policy);
    const Status read = one->read(text);
    ASSERT_TRUE(read.ok()) << policy << ": " << read.message();
    EXPECT_GT(one->kv().seen, 2048 + 256);
    EXPECT_LT(one->kv().kept, 2048);
    EXPECT_EQ(generate(*one).tokens, options.max_tokens);
  }
  const auto joined = session(*engine, "snapkv:budget=64+streaming:sinks=4,window=124");
  ASSERT_TRUE(joined->read(long_text()).ok());
  options.max_tokens = 2100;
  const GenerateResult result = generate(*joined, options);
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_GT(result.kv.seen, 2048);
  EXPECT_LE(result.kv.kept, 128);
}

TEST_F(SessionTest, PoliciesWithoutBoundThatHoldTooMuchSaySo) {
  const auto engine = open({.kv_memory = std::uint64_t{64} << 20});
  std::string text;
  for (int i = 0; i < 5; ++i) text += long_text();
  const auto expect_refused = [&](const char* policy, const char* says, std::int64_t seen) {
    const auto one = session(*engine, policy);
    const Status read = one->read(text);
    EXPECT_EQ(read.code(), StatusCode::kResourceExhausted) << policy;
    EXPECT_NE(read.message().find(says), std::string::npos) << read.message();
    EXPECT_EQ(one->kv().seen, seen);
  };
  // How much it will drop is not known before; or it is.
  expect_refused("lethe:tau=1e200,start=4000", "there is no room for the next", 2048);
  expect_refused("snapkv:budget=64", "holds all of a prompt until its end", 0);
  // While generating, the text ends there.
  const auto one = session(*engine, "lethe:tau=1e200,start=4000");
  ASSERT_TRUE(one->read(long_text()).ok());
  GenerateOptions options = kGreedy;
  options.max_tokens = 4000;
  const GenerateResult result = generate(*one, options);
  EXPECT_EQ(result.finish_reason, FinishReason::kContext);
  EXPECT_EQ(result.kv.seen, 2048);
}

}  // namespace
}  // namespace kvasir::test
