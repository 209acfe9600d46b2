// Requests of random models under many policies: their text is that of a session alone, whatever happens to them.
#include "engine/request_queue.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "engine/crowd.h"
#include "engine/session.h"

namespace kvasir::test {
namespace {

std::string random_text(int letters, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text;
  for (int i = 0; i < letters; ++i) text += random() % 6 == 0 ? ' ' : static_cast<char>('a' + random() % 26);
  return text;
}

RequestOptions random_request(std::mt19937_64& random, const std::vector<std::string>& policies, int most_tokens) {
  RequestOptions options;
  options.policy = policies[random() % policies.size()];
  options.prompt = random_text(1 + static_cast<int>(random() % 120), random());
  options.generate.max_tokens = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most_tokens));
  options.generate.ignore_eos = random() % 4 != 0;
  if (random() % 6 == 0) options.generate.stop = {"a", "qu"};
  options.generate.sampling.seed = 1 + random() % 1000;
  options.generate.sampling.temperature = random() % 2 == 0 ? 0.0F : 1.5F;
  options.generate.sampling.repetition_penalty = 1.1F;
  if (random() % 5 == 0) options.samples = 1 + static_cast<int>(random() % 4);
  return options;
}

// What a session alone, in a cache of its own, makes of sample `sample` of a request.
GenerateResult alone(const std::shared_ptr<LoadedModel>& model, const RequestOptions& options, int sample = 0,
                     std::uint64_t memory = std::uint64_t{1} << 28) {
  const auto driver = std::make_shared<Driver>(model, *new_cache(model, memory));
  const auto session = make_session(driver, std::move(*make_policy(options.policy)));
  const Status read = session->read(options.prompt);
  EXPECT_TRUE(read.ok()) << read.message();
  GenerateOptions generate = options.generate;
  generate.sampling.seed += static_cast<std::uint64_t>(sample);
  const auto result = session->generate(generate, {});
  EXPECT_TRUE(result.ok()) << result.status().message();
  return *result;
}

// A queue, what was asked of it, and what its events said, checked for their order as they come.
class Desk {
 public:
  Desk(std::shared_ptr<LoadedModel> model, std::uint64_t memory, const ScheduleLimits& limits = {})
      : model_(std::move(model)),
        driver_(std::make_shared<Driver>(model_, *new_cache(model_, memory))),
        queue_(driver_, limits) {}

  RequestId add(const RequestOptions& options) {
    auto text = encode_request(*model_, options);
    EXPECT_TRUE(text.ok()) << text.status().message();
    const RequestId id = queue_.add(options, std::move(*text), std::move(*make_policy(options.policy)));
    asked_[id] = options;
    return id;
  }

  void poll() {
    const auto events = queue_.poll();
    ASSERT_TRUE(events.ok()) << events.status().message();
    for (const Event& event : *events) {
      ASSERT_EQ(asked_.count(event.request), 1u);
      Told& told = told_[{event.request, event.sample}];
      ASSERT_FALSE(told.ended) << "after its last event";
      switch (event.kind) {
        case Event::Kind::kPrompt:
          ASSERT_EQ(event.sample, 0);
          ASSERT_GT(event.done, told.read);
          ASSERT_LE(event.done, event.total);
          ASSERT_TRUE(told.text.empty()) << "a prompt that is read after text came";
          told.read = event.done;
          told.total = event.total;
          break;
        case Event::Kind::kText:
          ASSERT_FALSE(event.text.empty());
          told.text += event.text;
          break;
        case Event::Kind::kFinished:
          ASSERT_EQ(told.text, event.result.text);
          told.ended = true;
          told.result = event.result;
          told.status = event.status;
          break;
        case Event::Kind::kFailed:
          ASSERT_FALSE(event.status.ok());
          told.ended = true;
          told.failed = true;
          told.status = event.status;
          break;
      }
    }
  }

  void run_to_end(int most_polls = 100000) {
    for (int polls = 0; queue_.unfinished() > 0; ++polls) {
      ASSERT_LT(polls, most_polls) << "no end";
      ASSERT_NO_FATAL_FAILURE(poll());
    }
    EXPECT_EQ(driver_->cache()->budget().used(), 0u);
    driver_->cache()->check_invariants({});
  }

  struct Told {
    std::int64_t read = 0;
    std::int64_t total = 0;
    std::string text;
    bool ended = false;
    bool failed = false;
    GenerateResult result;
    Status status;
  };

  void expect_all_as_alone(const std::set<RequestId>& but = {}) {
    for (const auto& [id, options] : asked_)
      for (int sample = 0; sample < options.samples && but.count(id) == 0; ++sample) {
        SCOPED_TRACE(options.policy);
        const Told& told = told_[{id, sample}];
        ASSERT_TRUE(told.ended);
        ASSERT_FALSE(told.failed) << told.status.message();
        const GenerateResult expected = alone(model_, options, sample);
        EXPECT_EQ(told.result.text, expected.text);
        EXPECT_EQ(told.result.tokens, expected.tokens);
        EXPECT_EQ(told.result.finish_reason, expected.finish_reason);
        EXPECT_EQ(told.result.prompt_tokens, expected.prompt_tokens);
        EXPECT_EQ(told.result.seed, expected.seed);
        EXPECT_EQ(told.result.kv.seen, expected.kv.seen);
        EXPECT_EQ(told.result.kv.kept, expected.kv.kept);
        EXPECT_EQ(told.result.kv.kept_most, expected.kv.kept_most);
        // A fork has smaller tables, and the pages that cascade keeps ready depend on the rows of a pass.
        if (options.samples == 1 && queue_.counters().preempted == 0 && !options.policy.starts_with("cascade")) {
          EXPECT_EQ(told.result.kv.bytes, expected.kv.bytes);
        }
        EXPECT_EQ(told.read, sample == 0 ? told.total : 0);
      }
  }

  const std::shared_ptr<Driver>& driver() const { return driver_; }
  RequestQueue& queue() { return queue_; }
  Told& told(RequestId id, int sample = 0) { return told_[{id, sample}]; }

 private:
  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<Driver> driver_;
  RequestQueue queue_;
  std::map<RequestId, RequestOptions> asked_;
  std::map<std::pair<RequestId, int>, Told> told_;
};

std::vector<std::string> policies_for_requests() {
  std::vector<std::string> policies = all_policies_in_use();
  std::erase(policies, "full");  // outgrows the trained context; has tests of its own
  return policies;
}

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
      EXPECT_LE(counters.most_rows, prompt_rows);
      EXPECT_EQ(counters.preempted, 0);
    }
  }
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
    EXPECT_LE(desk.driver()->cache()->budget().peak(), 2 * most);
    preempted += desk.queue().counters().preempted > 0 ? 1 : 0;
    ++policies;
  }
  EXPECT_GT(preempted, policies / 2) << "of " << policies;
}

// Any mixture, any memory, cancelled at any time.
TEST(Requests, ACrowdInLittleMemoryLosesNothing) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  std::int64_t preempted = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<RequestOptions> requests;
    std::uint64_t most = 0;
    for (int i = 0; i < 40; ++i) {
      requests.push_back(random_request(random, policies_for_requests(), 60));
      if (seed % 2 == 0) requests.back().samples = 1;
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
  }
  EXPECT_GT(preempted, 5);
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
    EXPECT_EQ(desk.driver()->cache()->budget().used(), held->bytes());
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
    const PageId page = desk.queue().sequence_of(ids[1], 0)->tables().table(0).pages_of(0)[0];
    const std::vector<std::byte> bytes(model->kv_shape.page.bytes(), std::byte{0xff});
    desk.driver()->cache()->pool().store()->write(page, bytes);
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
