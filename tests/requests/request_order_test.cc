// Priorities, marks, quotas and reservations of requests: they decide who waits and who gives way, never a token.
#include <gtest/gtest.h>

#include "kvasir/engine.h"
#include "planning/memory_plan.h"
#include "planning/request_plan.h"
#include "requests/request_desk.h"

namespace kvasir::test {
namespace {

class RequestOrder : public ::testing::Test {
 protected:
  RequestOrder()
      : file_(make_random_model(crowd_spec())), model_(load(file_.path(), {.threads = 1, .page_slots = 16})) {}

  // What a text of so many tokens takes under `full`.
  std::uint64_t bytes_of(int tokens) const { return KvCache::cost(model_->kv_shape, {}, (tokens + 15) / 16); }

  static RequestOptions request(int letters, int tokens, int priority = 0, int tenant = 0) {
    return {.prompt = random_text(letters, static_cast<std::uint64_t>(letters)),
            .policy = "full",
            .generate = {.max_tokens = tokens, .ignore_eos = true, .sampling = {.temperature = 0, .seed = 1}},
            .priority = priority,
            .tenant = tenant};
  }

  bool holds(Desk& desk, RequestId id) const { return desk.queue().sequence_of(id, 0) != nullptr; }

  TemporaryFile file_;
  std::shared_ptr<LoadedModel> model_;
};

// The best priority is done before the others begin; it takes the pages of a worse one that runs.
TEST_F(RequestOrder, ABetterPriorityGoesFirst) {
  Desk desk(model_, bytes_of(130), {.ahead = 0, .stop_mark = 0.95});
  const RequestId low = desk.add(request(60, 40, 5));
  while (desk.told(low).text.size() < 5) ASSERT_NO_FATAL_FAILURE(desk.poll());
  const RequestId middle = desk.add(request(70, 30, 1));
  const RequestId high = desk.add(request(80, 20, -1));
  ASSERT_NO_FATAL_FAILURE(desk.poll());
  EXPECT_TRUE(holds(desk, high));
  EXPECT_FALSE(holds(desk, low));
  EXPECT_FALSE(holds(desk, middle));
  while (!desk.told(high).ended) {
    ASSERT_FALSE(holds(desk, middle));
    ASSERT_NO_FATAL_FAILURE(desk.poll());
  }
  while (!desk.told(middle).ended) {
    ASSERT_FALSE(desk.told(low).ended);
    ASSERT_NO_FATAL_FAILURE(desk.poll());
  }
  ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
  desk.expect_all_as_alone();
  EXPECT_EQ(desk.queue().counters().preempted, 1);
  const GenerateResult& result = desk.told(low).result;
  EXPECT_EQ(result.preemptions, 1);
  EXPECT_GT(result.recomputed, result.prompt_tokens);
  EXPECT_EQ(result.recomputed, desk.queue().counters().recomputed_tokens);
  EXPECT_EQ(desk.told(high).result.preemptions, 0);
  EXPECT_EQ(desk.told(high).result.recomputed, 0);
  EXPECT_GE(desk.told(middle).result.queue_seconds, desk.told(high).result.seconds);
  EXPECT_LE(desk.told(middle).result.queue_seconds, desk.told(middle).result.prompt_seconds);
}

// What was generated is read again in the very memory that it was generated in, although rows of a chunk hold the
// window of the first of them until the last is done.
TEST_F(RequestOrder, WhatIsPlannedIsEnoughToGoOn) {
  for (const char* policy : {"streaming:sinks=2,window=62", "window:size=50"}) {
    SCOPED_TRACE(policy);
    RequestOptions options = request(20, 120, 5);
    options.policy = policy;
    const auto made = *make_policy(policy);
    const auto prompt = static_cast<std::int64_t>(encode_request(*model_, options)->tokens.size());
    const KvMemory plan =
        plan_kv_memory(model_->kv_shape, *made, {prompt + 120, prompt, prompt_chunk(*made, 0), 1, true});
    Desk desk(model_, plan.bytes, {.ahead = 0, .stop_mark = 1, .preempt_mark = 1});
    const RequestId low = desk.add(options);
    const auto seen = [&] {
      const Sequence* sequence = desk.queue().sequence_of(low, 0);
      return sequence != nullptr ? sequence->tables().next_index() : 0;
    };
    while (seen() < prompt + 110) ASSERT_NO_FATAL_FAILURE(desk.poll());
    options.priority = -1;
    const RequestId high = desk.add(options);
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    desk.expect_all_as_alone();
    EXPECT_EQ(desk.told(low).result.preemptions, 1);
    EXPECT_EQ(desk.told(high).result.preemptions, 0);
    EXPECT_LE(desk.told(low).result.kv.bytes_peak, plan.bytes);
  }
}

// In the memory that the whole context takes, every text of it has room, however little of it is held.
TEST_F(RequestOrder, WhatIsForgottenIsNotPlanned) {
  constexpr std::int64_t kContext = 3000;
  for (const char* spec : {"h2o:budget=40,pos=original", "tova:budget=40,pos=original"}) {
    SCOPED_TRACE(spec);
    CacheSize place{.policy = *make_policy(spec), .chunk = 32};
    const KvCacheShape& shape = model_->kv_shape;
    place.bytes = plan_kv_memory(shape, *place.policy, {kContext, kContext, 32, 1, true}).bytes;
    ASSERT_LT(place.bytes, bytes_of(kContext) / 4);
    const auto plan = plan_request({.prompt = 2000, .max_tokens = 10}, shape, place, kContext);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_TRUE(plan->refusal.ok()) << plan->refusal.message();
    EXPECT_EQ(plan->most_tokens, kContext - 2000);
  }
}

// One tenant fills the cache; another gets its floor at once, and the first goes on with what is left.
TEST_F(RequestOrder, ATenantGetsItsFloorBack) {
  Desk desk(model_, bytes_of(300), {.ahead = 0, .stop_mark = 0.98, .preempt_mark = 0.98});
  desk.queue().set_quota(1, {bytes_of(120), 0});
  std::vector<RequestId> borrows;
  for (int i = 0; i < 3; ++i) borrows.push_back(desk.add(request(60 + i, 35, 0, 2)));
  while (desk.told(borrows.back()).text.size() < 8) ASSERT_NO_FATAL_FAILURE(desk.poll());
  EXPECT_EQ(desk.queue().counters().preempted, 0);
  const RequestId own = desk.add(request(80, 20, 9, 1));  // its priority does not matter
  for (int polls = 0; !desk.told(own).ended; ++polls) {
    ASSERT_NO_FATAL_FAILURE(desk.poll());
    ASSERT_TRUE(desk.told(own).ended || holds(desk, own));
  }
  EXPECT_GT(desk.queue().counters().preempted, 0);
  ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
  desk.expect_all_as_alone();
  EXPECT_EQ(desk.told(own).result.preemptions, 0);
  EXPECT_EQ(desk.queue().counters().preempted_twice, 0);
}

TEST_F(RequestOrder, ATenantAtItsCeilingWaitsAlone) {
  Desk desk(model_, bytes_of(2000), {.ahead = 0, .stop_mark = 0.9});
  desk.queue().set_quota(1, {0, bytes_of(150)});
  const RequestId first = desk.add(request(60, 30, 0, 1));
  const RequestId second = desk.add(request(61, 30, 0, 1));
  const RequestId other = desk.add(request(62, 30, 0, 2));
  ASSERT_NO_FATAL_FAILURE(desk.poll());
  EXPECT_TRUE(holds(desk, first));
  EXPECT_FALSE(holds(desk, second));
  EXPECT_TRUE(holds(desk, other));
  // One that outgrows the ceiling alone ends with what it has.
  const RequestId outgrows = desk.add(request(100, 45, 0, 3));
  desk.queue().set_quota(3, {0, bytes_of(120)});
  ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
  desk.expect_all_as_alone({outgrows});
  EXPECT_EQ(desk.queue().counters().preempted, 0);
  EXPECT_EQ(desk.queue().counters().over_ceiling, 1);
  EXPECT_EQ(desk.told(outgrows).result.finish_reason, FinishReason::kKvMemory);
  EXPECT_NE(desk.told(outgrows).status.message().find(std::to_string(bytes_of(120))), std::string::npos)
      << desk.told(outgrows).status.message();
}

// A short prompt has its answer while a long one that came before it is still read.
TEST_F(RequestOrder, AShortPromptPassesALongOne) {
  Desk desk(model_, bytes_of(2000), {.prompt_rows = 8});
  const RequestId long_one = desk.add(request(120, 3));
  desk.add(request(110, 3));
  const RequestId short_one = desk.add(request(20, 3));
  int polls = 0;
  for (; !desk.told(short_one).ended; ++polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
  EXPECT_TRUE(desk.told(long_one).text.empty());
  EXPECT_LE(polls, 20 / 4 + 5);
  ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
  desk.expect_all_as_alone();
}

// Long texts fill the memory and one of them waits; a question of a few tokens is answered all the same.
TEST_F(RequestOrder, ASmallRequestPassesOneThatWaitsForMemory) {
  for (const double small : {0.15, 0.0}) {
    Desk desk(model_, bytes_of(300),
              {.ahead = 0, .stop_mark = 0.9, .preempt_mark = 0.98, .small = small, .small_together = small});
    const RequestId runs = desk.add(request(60, 60));
    desk.add(request(61, 60));
    const RequestId waits = desk.add(request(62, 60));
    while (desk.told(runs).text.size() < 5) ASSERT_NO_FATAL_FAILURE(desk.poll());
    ASSERT_FALSE(holds(desk, waits));
    const RequestId question = desk.add(request(4, 2));
    while (!desk.told(question).ended) ASSERT_NO_FATAL_FAILURE(desk.poll());
    EXPECT_EQ(desk.told(runs).ended, small == 0);
    EXPECT_EQ(holds(desk, waits), small == 0);
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    desk.expect_all_as_alone();
  }
}

// Preemptions that other memory would not prevent leave the prefixes of others where they are.
TEST_F(RequestOrder, PrefixesStayWhereMemoryIsNotWhatIsShort) {
  const auto finish = [](Desk& desk) {
    while (desk.queue().unfinished() > 0) ASSERT_NO_FATAL_FAILURE(desk.poll());
  };
  RequestOptions known = request(100, 5, 0, 2);
  known.salt = "of another tenant";
  known.pin = true;
  {
    // A tenant takes its own request's pages, as it is at its ceiling.
    Desk desk(model_, bytes_of(2000), {.ahead = 0});
    desk.queue().cache_prefixes(bytes_of(2000));
    desk.queue().set_quota(1, {0, bytes_of(150)});
    desk.add(known);
    ASSERT_NO_FATAL_FAILURE(finish(desk));
    for (int i = 0; i < 2; ++i) desk.add(request(60 + i, 30, 0, 1));
    ASSERT_NO_FATAL_FAILURE(finish(desk));
    EXPECT_GT(desk.queue().counters().preempted, 0);
    const RequestId again = desk.add(known);
    ASSERT_NO_FATAL_FAILURE(finish(desk));
    EXPECT_EQ(desk.told(again).result.cached, (desk.told(again).result.prompt_tokens - 1) / 16 * 16);
  }
  {
    // A better priority needs a place.
    Desk desk(model_, bytes_of(2000), {.running = 1, .ahead = 0});
    desk.queue().cache_prefixes(bytes_of(2000));
    desk.add(known);
    ASSERT_NO_FATAL_FAILURE(finish(desk));
    const RequestId low = desk.add(request(60, 40, 5));
    while (desk.told(low).text.size() < 5) ASSERT_NO_FATAL_FAILURE(desk.poll());
    desk.add(request(61, 5, -1));
    ASSERT_NO_FATAL_FAILURE(finish(desk));
    EXPECT_EQ(desk.queue().counters().preempted, 1);
    const RequestId again = desk.add(known);
    ASSERT_NO_FATAL_FAILURE(finish(desk));
    EXPECT_EQ(desk.told(again).result.cached, (desk.told(again).result.prompt_tokens - 1) / 16 * 16);
  }
}

// Requests that begin alike count what they share once: for the memory, and for their tenant's ceiling.
TEST_F(RequestOrder, WhatRequestsShareCountsOnce) {
  for (const bool ceiling : {false, true}) {
    SCOPED_TRACE(ceiling);
    Desk desk(model_, bytes_of(ceiling ? 2000 : 380), {.ahead = 0, .stop_mark = 0.95});
    desk.queue().cache_prefixes(bytes_of(2000));
    if (ceiling) desk.queue().set_quota(1, {0, bytes_of(380)});
    for (int i = 0; i < 6; ++i) {
      RequestOptions options = request(98, 10, 0, 1);
      options.prompt += static_cast<char>('a' + i);
      desk.add(options);
    }
    while (desk.queue().unfinished() > 0) ASSERT_NO_FATAL_FAILURE(desk.poll());
    EXPECT_EQ(desk.queue().counters().most_running, 6u);
    EXPECT_EQ(desk.queue().counters().preempted + desk.queue().counters().over_ceiling, 0);
    desk.expect_all_as_alone();
  }
}

// Requests that name no limit run side by side in memory that holds the trained context of one.
TEST_F(RequestOrder, WithoutALimitRequestsRunSideBySide) {
  for (const int max_tokens : {-1, 1000}) {
    Desk desk(model_, bytes_of(160), {.ahead = 0, .stop_mark = 0.9, .preempt_mark = 0.98});
    std::vector<RequestId> ids;
    for (int i = 0; i < 4; ++i) ids.push_back(desk.add(request(8 + i, max_tokens)));
    for (int polls = 0; polls < 3; ++polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
    EXPECT_EQ(desk.queue().counters().most_running, 4u);
    // They grow into the same memory: some give way, all come to their ends.
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    EXPECT_GT(desk.queue().counters().preempted, 0);
    EXPECT_EQ(desk.queue().counters().preempted_twice, 0);
    for (const RequestId id : ids) EXPECT_GT(desk.told(id).result.kv.seen, 140);
  }
  // One that names a limit counts with all of it.
  Desk desk(model_, bytes_of(160), {.ahead = 0, .stop_mark = 0.9, .preempt_mark = 0.98});
  for (int i = 0; i < 4; ++i) desk.add(request(8 + i, 120));
  for (int polls = 0; polls < 3; ++polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
  EXPECT_EQ(desk.queue().counters().most_running, 1u);
}

// What admission counts for a request is what it then takes.
TEST_F(RequestOrder, EstimatesAreWhatARequestTakes) {
  for (const std::string& spec : all_policies_in_use()) {
    SCOPED_TRACE(spec);
    RequestOptions options = request(60, 40);
    options.policy = spec;
    const GenerateResult result = alone(model_, options);
    const auto policy = std::move(*make_policy(spec));
    const RequestSize size{result.prompt_tokens, 40, model_->config.context, model_->options.chunk};
    const std::uint64_t peak = peak_bytes(model_->kv_shape, *policy, size);
    EXPECT_GE(peak, result.kv.bytes_peak);
    if (plan_kv_memory(model_->kv_shape, *policy, {100, 60, size.chunk, 1}).exact) {
      EXPECT_LE(peak, KvCache::cost(model_->kv_shape, {}, 1) + result.kv.bytes_peak);
    }
  }
}

TEST_F(RequestOrder, AQuotaOfZerosIsNone) {
  Admissions admissions({}, 0);
  for (int tenant = 1; tenant <= 3; ++tenant) admissions.set_quota(tenant, {0, 100u * tenant});
  admissions.set_quota(2, {});
  admissions.set_quota(7, {});
  ASSERT_EQ(admissions.quotas().size(), 2u);
  EXPECT_EQ(admissions.index_of(2), -1);
  EXPECT_EQ(admissions.index_of(7), -1);
  EXPECT_EQ(admissions.quotas()[static_cast<std::size_t>(admissions.index_of(1))].ceiling, 100u);
  EXPECT_EQ(admissions.quotas()[static_cast<std::size_t>(admissions.index_of(3))].ceiling, 300u);
}

// Every policy, in little memory: reservations preempt nobody, and priorities and quotas change no token.
TEST_F(RequestOrder, ACrowdOfTenantsLosesNothing) {
  std::int64_t preempted = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const bool reserves = seed % 3 == 2;
    std::mt19937_64 random(seed);
    std::vector<RequestOptions> requests;
    std::uint64_t most = 0;
    for (int i = 0; i < 30; ++i) {
      requests.push_back(random_request(random, policies_for_requests(), 60));
      requests.back().samples = 1;
      requests.back().generate.max_tokens += 30;
      requests.back().priority = static_cast<int>(random() % 3);
      requests.back().tenant = static_cast<int>(random() % 4);
      most = std::max(most, alone(model_, requests.back()).kv.bytes_peak);
    }
    ScheduleLimits limits{.prompt_rows = 30, .running = 10, .ahead = 0, .stop_mark = 0.90, .preempt_mark = 0.98};
    if (reserves) limits.admission = Admission::kReserve;
    Desk desk(model_, reserves ? 3 * most : most * 5 / 4, limits);
    if (!reserves) {
      desk.queue().set_quota(1, {most / 2, 0});
      desk.queue().set_quota(2, {most / 4, most});
    }
    for (const RequestOptions& request : requests) {
      desk.add(request);
      for (auto polls = random() % 8; polls > 0; --polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
    }
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    desk.expect_all_as_alone();
    const RequestQueue::Counters& counters = desk.queue().counters();
    EXPECT_EQ(counters.preempted_twice, 0);
    EXPECT_EQ(counters.rejected + counters.over_ceiling, 0);
    EXPECT_LE(desk.runner()->cache()->budget().peak(), reserves ? 3 * most : most * 5 / 4);
    if (reserves) {
      EXPECT_EQ(counters.preempted, 0);
      EXPECT_GT(counters.most_running, 2u);
    } else {
      preempted += counters.preempted;
    }
  }
  EXPECT_GT(preempted, 5);
}

// The bound is far below what a pass takes, so prompts join with the fewest rows; no token changes.
TEST_F(RequestOrder, ABoundOnLatencyMakesPromptsWait) {
  const auto runner = std::make_shared<BatchRunner>(model_, *new_cache(model_, std::uint64_t{1} << 28));
  RequestQueue queue(runner, {}, 1e-9);
  std::vector<RequestOptions> requests = {request(20, 60), request(110, 20)};
  std::vector<std::string> texts(2);
  for (const RequestOptions& options : requests) {
    queue.add(options, *encode_request(*model_, options), std::move(*make_policy(options.policy)));
    ASSERT_TRUE(queue.poll().ok());  // the second comes when the first has been read
  }
  while (queue.unfinished() > 0) {
    const auto events = queue.poll();
    ASSERT_TRUE(events.ok());
    for (const Event& event : *events)
      if (event.kind == Event::Kind::kFinished) texts[static_cast<std::size_t>(event.request) - 1] = event.result.text;
  }
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(texts[i], alone(model_, requests[i]).text);
  EXPECT_GE(queue.counters().mixed, 110 / kLeastPromptRows);
}

TEST_F(RequestOrder, QuotasAndOptionsAreChecked) {
  const auto engine =
      std::move(*Engine::open({.model = file_.path(), .threads = 1, .page_slots = 16, .kv_memory = 1 << 20}));
  EXPECT_TRUE(engine->set_quota(1, {600000, 700000}).ok());
  const Status more = engine->set_quota(2, {500000, 0});
  EXPECT_EQ(more.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(more.message().find("448576"), std::string::npos) << more.message();
  EXPECT_TRUE(engine->set_quota(2, {448576, 0}).ok());
  EXPECT_TRUE(engine->set_quota(1, {500000, 0}).ok()) << "in place of the first";
  EXPECT_EQ(engine->set_quota(3, {10, 5}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->set_quota(-1, {}).code(), StatusCode::kInvalidArgument);
  // A prompt that its tenant's ceiling can never hold.
  EXPECT_TRUE(engine->set_quota(4, {0, bytes_of(40)}).ok());
  const Status status = engine->submit(request(100, 5, 0, 4)).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find(std::to_string(bytes_of(40))), std::string::npos) << status.message();
  EXPECT_TRUE(engine->submit(request(20, 5, 0, 4)).ok());
  EngineReport report = engine->report();
  EXPECT_EQ(report.waiting, 1);
  while (engine->unfinished() > 0) EXPECT_TRUE(engine->poll().ok());
  report = engine->report();
  EXPECT_EQ(report.generated_tokens, 5);
  EXPECT_GT(report.prompt_tokens, 0);
  EXPECT_EQ(report.running + report.waiting, 0);
  for (const auto& [scheduler, field] :
       std::vector<std::pair<SchedulerOptions, std::string>>{{{.stop_mark = 0}, "stop_mark"},
                                                             {{.stop_mark = 0.9, .preempt_mark = 0.8}, "preempt_mark"},
                                                             {{.max_itl = -1}, "max_itl"},
                                                             {{.max_running = 0}, "max_running"},
                                                             {{.prompt_rows = 0}, "prompt_rows"}})
    EXPECT_EQ(Engine::open({.model = file_.path(), .scheduler = scheduler}).status().settings().front(), field);
}

}  // namespace
}  // namespace kvasir::test
