// How sessions end and go on: memory that runs out, draws that continue, passes that fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <new>

#include "kvasir/engine.h"
#include "sequence/policy_cases.h"
#include "session/session.h"
#include "support/engine_fixture.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;

std::unique_ptr<Engine> open(std::uint64_t kv_memory) {
  auto engine = Engine::open({.model = small_model(), .threads = 1, .kv_memory = kv_memory});
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(*engine);
}

// A session that ran out of memory goes on where there is more, as if it had never stopped.
TEST(SessionEnds, AFullMemoryChangesNoTokenThatFollows) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("kvasir-ends-" + std::to_string(::getpid()))).string();
  for (const std::uint64_t seed : {3u, 4u, 5u}) {
    GenerateOptions options{.ignore_eos = true, .sampling = {.temperature = 1.2F, .seed = seed}};
    options.sampling.frequency_penalty = 0.3F;
    const auto little = open(kMebibyte / 2);
    const auto stopped = std::move(*little->new_session({.policy = "full"}));
    ASSERT_TRUE(stopped->read("Once upon a time").ok());
    const GenerateResult begin = *stopped->generate(options, {});
    ASSERT_EQ(begin.finish_reason, FinishReason::kKvMemory);
    ASSERT_GT(begin.tokens, 10);
    ASSERT_TRUE(stopped->save(path).ok());

    const auto large = open(64 * kMebibyte);
    const auto whole = std::move(*large->new_session({.policy = "full"}));
    ASSERT_TRUE(whole->read("Once upon a time").ok());
    options.max_tokens = begin.tokens + 40;
    const GenerateResult expected = *whole->generate(options, {});
    const auto loaded = large->load_session(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    const GenerateResult end = *loaded->session->generate({.max_tokens = 40, .ignore_eos = true, .resume = true}, {});
    EXPECT_EQ(begin.text + end.text, expected.text);
    EXPECT_EQ(end.tokens, 40);
  }
  std::filesystem::remove(path);
}

// Greedy, so that the draws do not matter: what was read in between counts for penalties.
TEST(SessionEnds, AResumedGenerationPenalisesWhatWasRead) {
  const auto engine = open(64 * kMebibyte);
  const auto resumed = std::move(*engine->new_session({.policy = "full"}));
  GenerateOptions options{.max_tokens = 20, .ignore_eos = true, .sampling = {.temperature = 0}};
  options.sampling.presence_penalty = 5;
  ASSERT_TRUE(resumed->read("Once upon a time").ok());
  ASSERT_TRUE(resumed->generate(options, {}).ok());
  ASSERT_TRUE(
      resumed->read(" The old man and the dog went to the river, and then they saw that it was not there.").ok());
  const auto fresh = std::move(*resumed->fork());
  const std::string expected = fresh->generate(options, {})->text;
  EXPECT_EQ(resumed->generate({.max_tokens = 20, .ignore_eos = true, .resume = true}, {})->text, expected);
}

class FailingSession : public ::testing::Test {
 protected:
  FailingSession()
      : file_(make_random_model(small_spec())),
        model_(load(file_.path(), {.threads = 1, .kv_type = "f32", .page_slots = 16})),
        runner_(std::make_shared<BatchRunner>(model_, *new_cache(model_, std::uint64_t{1} << 26))),
        session_(make_session(runner_, std::move(*make_policy("full")))) {
    EXPECT_TRUE(session_->read("the house and the river, and the man").ok());
  }

  // Writes NaN to the first page that `of` accepts.
  bool damage(const std::function<bool(PageId page, std::uint32_t references)>& of) {
    const PagePool& pool = runner_->cache()->pool();
    for (std::uint32_t page = 0; page < 200; ++page) {
      if (!of(PageId{page}, pool.references(PageId{page}))) continue;
      const std::vector<std::byte> bytes(model_->kv_shape.page.bytes(), std::byte{0xff});
      runner_->cache()->pool().store()->write(PageId{page}, bytes);
      return true;
    }
    return false;
  }
  void expect_every_call_says(StatusCode code) {
    const auto is = [&](const Status& status) { EXPECT_EQ(status.code(), code) << status.message(); };
    is(session_->generate(options_, {}).status());
    is(session_->read("more"));
    is(session_->say("user", "more"));
    is(session_->sample(options_, 2, {}).status());
    is(session_->beam_search({.max_tokens = 3}, {}).status());
    is(session_->fork().status());
    is(session_->save("/nowhere/session"));
    EXPECT_GT(session_->kv().seen, 0);
  }

  const GenerateOptions options_{.max_tokens = 40, .ignore_eos = true, .sampling = {.seed = 7}};
  TemporaryFile file_;
  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<BatchRunner> runner_;
  std::unique_ptr<Session> session_;
};

TEST_F(FailingSession, EveryCallAfterANaNSaysSo) {
  ASSERT_TRUE(damage([](PageId, std::uint32_t references) { return references > 0; }));
  EXPECT_EQ(session_->generate(options_, {}).status().code(), StatusCode::kDataLoss);
  expect_every_call_says(StatusCode::kDataLoss);
}

TEST_F(FailingSession, EveryCallAfterAPassGivenUpSaysSo) {
  for (const bool reading : {true, false}) {
    session_ = make_session(runner_, std::move(*make_policy("h2o:budget=40,recent=10")));
    ASSERT_TRUE(session_->read("the house and the river").ok());
    runner_->step().set_watch([](const Sequence&) { throw std::bad_alloc(); });
    const Status status = reading ? session_->read("and the man") : session_->generate(options_, {}).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
    runner_->step().set_watch({});
    expect_every_call_says(StatusCode::kResourceExhausted);
  }
  session_ = make_session(runner_, std::move(*make_policy("full")));
  ASSERT_TRUE(session_->read("the house").ok());
  EXPECT_TRUE(session_->generate(options_, {}).ok()) << "others go on";
}

TEST_F(FailingSession, ASampleThatFailsDoesSoAlone) {
  const std::vector<GenerateResult> expected = *session_->sample(options_, 3, {});
  std::vector<PageId> own;  // the session's
  for (std::uint32_t page = 0; page < 200; ++page)
    if (runner_->cache()->pool().references(PageId{page}) > 0) own.push_back(PageId{page});
  bool damaged = false;
  int heard = 0;
  const auto results = session_->sample(options_, 3, [&](std::size_t, std::string_view) {
    // A page of one sample alone, once each has its own.
    if (!damaged && ++heard == 60)
      damaged = damage(
          [&](PageId page, std::uint32_t references) { return references == 1 && std::ranges::count(own, page) == 0; });
    return true;
  });
  ASSERT_TRUE(results.ok()) << results.status().message();
  ASSERT_TRUE(damaged);
  int failed = 0;
  for (std::size_t s = 0; s < 3; ++s) {
    const GenerateResult& result = (*results)[s];
    if (result.finish_reason == FinishReason::kFailed) {
      ++failed;
      EXPECT_EQ(result.status.code(), StatusCode::kDataLoss);
      EXPECT_GT(result.tokens, 5);
      EXPECT_EQ(expected[s].text.substr(0, result.text.size()), result.text);
      EXPECT_LT(result.tokens, 40);
    } else {
      EXPECT_TRUE(result.status.ok());
      EXPECT_EQ(result.text, expected[s].text);
    }
    EXPECT_EQ(result.seed, 7 + s);
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(session_->generate(options_, {})->text, expected[0].text) << "the session goes on";
}

}  // namespace
}  // namespace kvasir::test
