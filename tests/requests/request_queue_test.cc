// Requests of random models under many policies: their text is that of a session alone, whatever happens to them.
#include "requests/request_queue.h"

#include "requests/request_desk.h"

namespace kvasir::test {
namespace {

// Requests that come while others are under way, with few and with many rows in a pass.
TEST(RequestsThreads, HaveTheTextOfEachAlone) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  for (const int threads : {1, 3}) {
    const auto model = load(file.path(), {.threads = threads, .page_slots = 16});
    for (const int prompt_rows : {7, 256}) {
      Desk desk(model, std::uint64_t{1} << 28, {.prompt_rows = prompt_rows});
      std::mt19937_64 random(static_cast<std::uint64_t>(threads * 1000 + prompt_rows));
      for (int i = 0; i < 60; ++i) {
        desk.add(random_request(random, policies_for_requests(), 60));
        for (auto polls = random() % 4; polls > 0; --polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
      }
      ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
      desk.expect_all_as_alone();
      const RequestQueue::Counters& counters = desk.queue().counters();
      EXPECT_GT(counters.mixed, 30);
      EXPECT_GT(counters.most_running, 5u);
      EXPECT_GT(counters.prepared, counters.generated_tokens / 2);
      EXPECT_LE(counters.most_rows, prompt_rows);
      EXPECT_EQ(counters.preempted, 0);
    }
  }
}

// A load under a bound on passes: answers are generated, and long prompts come one after another.
RequestQueue::Counters counters_under(const std::shared_ptr<LoadedModel>& model, double max_itl) {
  Desk desk(model, std::uint64_t{1} << 28, {.prompt_rows = 32}, max_itl);
  const auto add = [&](int letters, int tokens) {
    RequestOptions options;
    options.policy = "full";
    options.prompt = random_text(letters, static_cast<std::uint64_t>(letters));
    options.generate.max_tokens = tokens;
    options.generate.ignore_eos = true;
    options.generate.sampling.temperature = 0;
    options.generate.sampling.seed = 1;
    desk.add(options);
  };
  for (int i = 0; i < 4; ++i) add(5 + i, 120);
  for (int i = 0; i < 10; ++i) desk.poll();
  for (int i = 0; i < 6; ++i) {
    add(100 + i, 2);
    for (int polls = 0; polls < 10; ++polls) desk.poll();
  }
  desk.run_to_end();
  desk.expect_all_as_alone();
  EXPECT_EQ(desk.queue().counters().preempted, 0);
  EXPECT_GT(desk.queue().counters().mixed, 10);
  return desk.queue().counters();
}

// The times are those that the queue expects, so that the machine's load decides nothing.
TEST(MaxItl, DecidesHowManyPromptRowsJoinAnswers) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const RequestQueue::Counters unbound = counters_under(model, 0);
  EXPECT_EQ(unbound.most_mixed_rows, 32);
  EXPECT_GT(unbound.longest_expected, 0);
  const RequestQueue::Counters least = counters_under(model, 1e-9);
  EXPECT_EQ(least.most_mixed_rows, kLeastPromptRows) << "prompts come to their end under any bound";
  EXPECT_GT(least.mixed, unbound.mixed);
  // Between the two: whatever this machine takes for a pass now.
  for (const double share : {0.5, 0.1}) {
    const double bound = share * unbound.longest_expected;
    EXPECT_LE(counters_under(model, bound).longest_expected, bound);
  }
  EXPECT_EQ(counters_under(model, 3600).most_mixed_rows, 32);
}

// Every policy gives up its pages and is recomputed; no token changes, and none is lost.
TEST(Requests, MemoryTooSmallForAllAtOnce) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  int preempted = 0;
  int policies = 0;
  for (const std::string& policy : policies_for_requests()) {
    SCOPED_TRACE(policy);
    std::mt19937_64 random(5);
    std::vector<RequestOptions> requests;
    std::uint64_t most = 0;
    for (int i = 0; i < 6; ++i) {
      requests.push_back(random_request(random, {policy}, 60));
      requests.back().generate.ignore_eos = true;
      requests.back().generate.stop.clear();
      requests.back().generate.max_tokens += 30;
      requests.back().samples = i == 3 ? 3 : 1;
      most = std::max(most, alone(model, requests.back()).kv.bytes_peak);
    }
    // Shared pages must be copied before some passes: a request needs up to twice its own.
    Desk desk(model, 2 * most, {.prompt_rows = 40, .ahead = 0});
    for (const RequestOptions& request : requests) desk.add(request);
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    desk.expect_all_as_alone();
    EXPECT_LT(desk.queue().counters().most_running, 8u) << "nothing had to wait";
    EXPECT_EQ(desk.queue().counters().rejected, 0);
    EXPECT_LE(desk.runner()->cache()->budget().peak(), 2 * most);
    preempted += desk.queue().counters().preempted > 0 ? 1 : 0;
    ++policies;
  }
  EXPECT_GT(preempted, policies / 2) << "of " << policies;
}

// Any mixture, any memory, cancelled at any time; with a draft model, whose cache gives way.
TEST(Requests, ACrowdInLittleMemoryLosesNothing) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto plain = load(file.path(), {.threads = 1, .page_slots = 16});
  const auto drafting = load(file.path(), {.draft_model = file.path(), .threads = 1, .page_slots = 16});
  std::int64_t preempted = 0, drafted = 0;
  // Most policies allow no drafts.
  for (std::uint64_t seed = 0; seed < 8 || (drafted <= 100 && seed < 24); ++seed) {
    const auto& model = seed < 4 ? plain : drafting;
    std::mt19937_64 random(seed);
    std::vector<RequestOptions> requests;
    std::uint64_t most = 0;
    for (int i = 0; i < 40; ++i) {
      requests.push_back(random_request(random, policies_for_requests(), 60));
      if (seed % 2 == 0) requests.back().samples = 1;
      if (seed >= 4 && i % 3 != 0) requests.back().generate.draft = "model";
      most = std::max(most, alone(model, requests.back()).kv.bytes_peak);
    }
    // Shared pages must be copied before some passes: a request of samples needs up to twice its own.
    Desk desk(model, seed % 2 == 0 ? most * 5 / 4 : 2 * most, {.prompt_rows = 30, .running = 10, .ahead = 0});
    std::vector<RequestId> ids;
    std::set<RequestId> cancelled;
    for (const RequestOptions& request : requests) {
      ids.push_back(desk.add(request));
      for (auto polls = random() % 8; polls > 0; --polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
      if (random() % 4 != 0) continue;
      const RequestId id = ids[ids.size() - 1 - random() % std::min<std::size_t>(ids.size(), 4)];
      if (desk.queue().cancel(id).ok()) cancelled.insert(id);
    }
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    desk.expect_all_as_alone(cancelled);
    EXPECT_GT(cancelled.size(), 0u);
    preempted += desk.queue().counters().preempted;
    if (seed >= 4) drafted += desk.queue().counters().drafted_tokens;
  }
  EXPECT_GT(preempted, 5);
  EXPECT_GT(drafted, 100);
}

TEST(Requests, ACancelledOneGivesBackItsPagesAndLeavesOthersAlone) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const RequestOptions options{
      .prompt = random_text(110, 1),
      .policy = "h2o:budget=40,recent=10",
      .generate = {.max_tokens = 50, .ignore_eos = true, .sampling = {.temperature = 1.5F, .seed = 3}}};
  RequestOptions other = options;
  other.prompt = random_text(100, 2);
  other.samples = 3;
  for (const int polls : {0, 1, 2, 5, 20}) {
    Desk desk(model, std::uint64_t{1} << 28, {.prompt_rows = 60});
    const RequestId stays = desk.add(options);
    while (desk.told(stays).text.size() < 5) ASSERT_NO_FATAL_FAILURE(desk.poll());
    const RequestId goes = desk.add(other);
    for (int i = 0; i < polls; ++i) ASSERT_NO_FATAL_FAILURE(desk.poll());
    EXPECT_EQ(desk.told(goes).read > 0, polls > 0);
    const Sequence* held = desk.queue().sequence_of(stays, 0);
    ASSERT_NE(held, nullptr);
    ASSERT_TRUE(desk.queue().cancel(goes).ok());
    EXPECT_EQ(desk.runner()->cache()->budget().used(), held->bytes());
    EXPECT_EQ(desk.queue().sequence_of(goes, 0), nullptr);
    EXPECT_EQ(desk.queue().cancel(goes).code(), StatusCode::kNotFound);
    EXPECT_EQ(desk.queue().unfinished(), 2);
    ASSERT_NO_FATAL_FAILURE(desk.poll());
    EXPECT_EQ(desk.queue().unfinished(), 1);
    for (int sample = 0; sample < 3; ++sample) {
      EXPECT_TRUE(desk.told(goes, sample).ended);
      EXPECT_EQ(desk.told(goes, sample).result.finish_reason, FinishReason::kCancelled);
      EXPECT_EQ(desk.told(goes, sample).result.seed, 3u + static_cast<unsigned>(sample));
    }
    if (polls == 20) {
      EXPECT_GT(desk.told(goes).result.tokens, 5);
    }
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    desk.expect_all_as_alone({goes});
  }
}

// Cancelled while others have its pages: the report says what it held.
TEST(Requests, APreemptedOneReportsWhatItHeld) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const RequestOptions options{.prompt = random_text(60, 1),
                               .policy = "full",
                               .generate = {.max_tokens = 70, .ignore_eos = true, .sampling = {.seed = 9}}};
  Desk desk(model, KvCache::cost(model->kv_shape, {}, 11), {.prompt_rows = 80, .ahead = 0});
  desk.add(options);
  const RequestId gives = desk.add(options);
  while (desk.queue().counters().preempted == 0 && desk.queue().unfinished() > 0) ASSERT_NO_FATAL_FAILURE(desk.poll());
  ASSERT_EQ(desk.queue().sequence_of(gives, 0), nullptr);
  ASSERT_TRUE(desk.queue().cancel(gives).ok());
  ASSERT_NO_FATAL_FAILURE(desk.poll());
  const GenerateResult& result = desk.told(gives).result;
  EXPECT_EQ(result.finish_reason, FinishReason::kCancelled);
  EXPECT_GT(result.tokens, 0);
  EXPECT_EQ(result.kv.seen, result.prompt_tokens + result.tokens);
  EXPECT_EQ(result.kv.kept, result.kv.seen);
  EXPECT_GT(result.kv.bytes_peak, 0u);
  ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
  desk.expect_all_as_alone({gives});
}

// A page that holds NaN, in the prompt and while generating.
TEST(Requests, AFailureEndsItsRequestAlone) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 2, .kv_type = "f32", .page_slots = 16});
  for (const bool in_prompt : {true, false}) {
    Desk desk(model, std::uint64_t{1} << 28, {.prompt_rows = 60});
    std::vector<RequestId> ids;
    for (std::uint64_t i = 0; i < 3; ++i)
      ids.push_back(desk.add({.prompt = random_text(100, i),
                              .policy = "streaming:sinks=4,window=90",
                              .generate = {.max_tokens = 30, .ignore_eos = true, .sampling = {.seed = 1 + i}},
                              .samples = i == 1 && in_prompt ? 2 : 1}));
    while (in_prompt ? desk.told(ids[1]).read == 0 : desk.told(ids[1]).text.size() < 5)
      ASSERT_NO_FATAL_FAILURE(desk.poll());
    EXPECT_EQ(desk.told(ids[1]).read < desk.told(ids[1]).total, in_prompt);
    const PageId page = desk.queue().sequence_of(ids[1], 0)->tables().table(0).pages().of(0)[0];
    const std::vector<std::byte> bytes(model->kv_shape.page.bytes(), std::byte{0xff});
    desk.runner()->cache()->pool().store()->write(page, bytes);
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    for (int sample = 0; sample < (in_prompt ? 2 : 1); ++sample) {
      EXPECT_TRUE(desk.told(ids[1], sample).failed);
      EXPECT_EQ(desk.told(ids[1], sample).status.code(), StatusCode::kDataLoss);
    }
    desk.expect_all_as_alone({ids[1]});
  }
}

// A text that outgrows the whole cache ends where it would have ended alone, and the others go on.
TEST(Requests, OneThatCanNeverGoOnEndsWithItsText) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const std::uint64_t memory = KvCache::cost(model->kv_shape, {}, 5);
  Desk desk(model, memory);
  RequestOptions endless{.prompt = random_text(20, 1),
                         .policy = "full",
                         .generate = {.max_tokens = 120, .ignore_eos = true, .sampling = {.seed = 4}}};
  RequestOptions brief = endless;
  brief.generate.max_tokens = 25;
  const RequestId first = desk.add(brief);
  const RequestId outgrows = desk.add(endless);
  const RequestId last = desk.add(brief);
  ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
  desk.expect_all_as_alone({outgrows});
  EXPECT_EQ(desk.told(first).text, desk.told(last).text);
  const Desk::Told& told = desk.told(outgrows);
  EXPECT_EQ(told.result.finish_reason, FinishReason::kKvMemory);
  EXPECT_EQ(told.status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(told.status.message().find(std::to_string(memory)), std::string::npos) << told.status.message();
  const GenerateResult expected = alone(model, endless, 0, memory);
  EXPECT_EQ(expected.finish_reason, FinishReason::kKvMemory);
  EXPECT_EQ(told.result.text, expected.text);
  EXPECT_EQ(told.result.kv.seen, expected.kv.seen);
  EXPECT_EQ(told.result.kv.bytes, expected.kv.bytes);
  EXPECT_EQ(desk.queue().counters().rejected, 1);
}

// The trained context of 150 tokens is used up.
TEST(Requests, TheContextEndsARequest) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  Desk desk(model, std::uint64_t{1} << 28);
  const RequestId id = desk.add({.prompt = random_text(100, 1), .policy = "full", .generate = {.ignore_eos = true}});
  ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
  EXPECT_EQ(desk.told(id).result.finish_reason, FinishReason::kContext);
  EXPECT_EQ(desk.told(id).result.kv.seen, 150);
}

}  // namespace
}  // namespace kvasir::test
