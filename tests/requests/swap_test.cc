// Requests that are preempted by swap: the same answers, whatever the file does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "requests/request_desk.h"
#include "sequence/sequence_runner.h"
#include "sequence/sequence_state.h"
#include "tiers/faulty_file.h"

namespace kvasir::test {
namespace {

using Fault = FaultyFile::Fault;

std::unique_ptr<SpillFile> spill_to(std::unique_ptr<AsyncFile> file, std::uint64_t parts = 256) {
  return std::move(*SpillFile::create(std::move(file), parts * SpillFile::kPartBytes));
}

struct Outcomes {
  std::int64_t out = 0;
  std::int64_t in = 0;
  std::int64_t failed = 0;
  std::int64_t preempted = 0;
};

// A crowd in little memory, some of whom are cancelled; all others have the answers they have alone.
void run_crowd(const std::shared_ptr<LoadedModel>& model, std::uint64_t seed,
               const std::function<std::unique_ptr<SpillFile>()>& make_file, bool cancels, Outcomes* outcomes) {
  std::mt19937_64 random(seed);
  std::vector<RequestOptions> requests;
  std::uint64_t most = 0;
  for (int i = 0; i < 32; ++i) {
    requests.push_back(random_request(random, policies_for_requests(), 60));
    if (seed % 2 == 0) requests.back().samples = 1;
    if (model->codecs.size() > 1) requests.back().codec = codec_name(model->codecs[random() % model->codecs.size()]);
    most = std::max(most, alone(model, requests.back()).kv.bytes_peak);
  }
  // Shared pages must be copied before some passes: a request of samples needs up to twice its own.
  Desk desk(model, seed % 2 == 0 ? most * 5 / 4 : 2 * most, {.prompt_rows = 30, .running = 10, .ahead = 0});
  desk.queue().swap_to(make_file(), true);
  std::vector<RequestId> ids;
  std::set<RequestId> cancelled;
  for (const RequestOptions& request : requests) {
    ids.push_back(desk.add(request));
    for (auto polls = random() % 8; polls > 0; --polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
    if (!cancels || random() % 4 != 0) continue;
    const RequestId id = ids[ids.size() - 1 - random() % std::min<std::size_t>(ids.size(), 4)];
    if (desk.queue().cancel(id).ok()) cancelled.insert(id);
  }
  ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
  desk.expect_all_as_alone(cancelled);
  const RequestQueue::Counters& counters = desk.queue().counters();
  outcomes->out += counters.swapped_out;
  outcomes->in += counters.swapped_in;
  outcomes->failed += counters.swap_failed;
  outcomes->preempted += counters.preempted;
}

class SwapOf : public testing::TestWithParam<const char*> {};

TEST_P(SwapOf, ACrowdInLittleMemoryHasItsAnswers) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .kv_type = GetParam(), .page_slots = 16});
  Outcomes outcomes;
  for (std::uint64_t seed = 0; seed < 16; ++seed)
    ASSERT_NO_FATAL_FAILURE(run_crowd(
        model, seed, [] { return spill_to(std::make_unique<FaultyFile>(no_fault, 2)); }, true, &outcomes));
  EXPECT_GT(outcomes.out, 8);
  EXPECT_GT(outcomes.in, 3);
  EXPECT_EQ(outcomes.failed, 0);
}

INSTANTIATE_TEST_SUITE_P(Codecs, SwapOf, testing::Values("f16", "q4", "k=q8,v=q2,recent=24"), [](const auto& info) {
  return info.index == 0 ? "F16" : info.index == 1 ? "Q4" : "MixedAndRecent";
});

TEST(Swap, ACrowdOfSeveralCodecsHasItsAnswers) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model =
      load(file.path(), {.threads = 1, .kv_types = {"q8", "q4", "k=q8,v=q2,recent=24"}, .page_slots = 16});
  Outcomes outcomes;
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    ASSERT_NO_FATAL_FAILURE(run_crowd(
        model, seed, [] { return spill_to(std::make_unique<FaultyFile>(no_fault, 2)); }, true, &outcomes));
  EXPECT_GT(outcomes.out, 4);
  EXPECT_GT(outcomes.in, 1);
  EXPECT_EQ(outcomes.failed, 0);
}

TEST(Swap, OnADisk) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 2, .page_slots = 16});
  for (const TransferMethod method : {TransferMethod::kAuto, TransferMethod::kThreads}) {
    Outcomes outcomes;
    ASSERT_NO_FATAL_FAILURE(run_crowd(
        model, 2,
        [&] {
          return spill_to(std::move(*create_scratch_file(std::filesystem::temp_directory_path().string(), method)));
        },
        false, &outcomes));
    EXPECT_GT(outcomes.in, 0);
  }
}

// Each write and each read goes wrong once; then all of them do. Nobody notices but by the time it takes.
TEST(Swap, WhatTheFileLosesIsComputedAgain) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  // A crowd of which three texts leave memory and come back.
  std::uint64_t seed = 0;
  for (Outcomes sound; seed < 100; ++seed, sound = {}) {
    ASSERT_NO_FATAL_FAILURE(run_crowd(
        model, seed, [] { return spill_to(std::make_unique<FaultyFile>(no_fault, 1)); }, false, &sound));
    if (sound.out >= 3 && sound.in >= 3) break;
  }
  ASSERT_LT(seed, 100u);
  Outcomes all;
  for (const Fault fault : {Fault::kError, Fault::kDamaged})
    for (const bool in_reads : {false, true})
      for (const int number : {0, 1, 2, -1}) {
        const auto plan = [=](bool reads, int at) {
          return reads == in_reads && (number < 0 || at == number) ? fault : Fault::kNone;
        };
        Outcomes outcomes;
        ASSERT_NO_FATAL_FAILURE(run_crowd(
            model, seed, [&] { return spill_to(std::make_unique<FaultyFile>(plan, 1)); }, false, &outcomes));
        EXPECT_GT(outcomes.out + outcomes.failed, number) << "the fault happened";
        EXPECT_GT(outcomes.failed, 0);
        if (number < 0) {
          EXPECT_EQ(outcomes.in, 0);
        }
        // What could not be written has not left.
        EXPECT_EQ(outcomes.out, outcomes.in + (in_reads || fault == Fault::kDamaged ? outcomes.failed : 0));
        all.failed += outcomes.failed;
      }
  EXPECT_GT(all.failed, 20);
}

// The columns of a ring may begin with the token that a column of another run begins with. A restored table has its
// pages in the order in which they were saved, so it is saved in that order again.
TEST(Swap, PagesComeBackInTheOrderInWhichTheyLeft) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 2, .page_slots = 16});
  const std::string policy = "cascade:size=512,n=4,sinks=4,select=off";
  const auto cache = *new_cache(model, std::uint64_t{1} << 28);
  SequenceRunner runner(model, cache, std::move(*make_policy(policy)));
  const std::vector<TokenId> tokens = random_tokens(800, crowd_spec().vocab, 5);
  bool alike = false;  // two columns began with one token
  for (std::size_t at = 0; at < tokens.size(); ++at) {
    ASSERT_TRUE(
        runner
            .feed(
                std::span(tokens).subspan(at, 1), 0, Logits::kNone, [](auto...) { return true; }, Source::kGenerated)
            .ok());
    if (at < 300 || at % 9 != 0) continue;
    std::vector<std::byte> first, second;
    ByteWriter once(&first), again(&second);
    write_sequence(runner.whole(), once);
    Sequence restored(model, cache, std::move(*make_policy(policy)));
    ByteReader in(first);
    ASSERT_TRUE(read_sequence(in, &restored).ok());
    write_sequence(restored, again);
    ASSERT_EQ(first, second) << at;
    const PageTable& table = restored.tables().table(0);
    std::set<TokenIndex> begins;
    const auto columns = std::ssize(table.columns().in_order());
    for (std::size_t f = 0; f < table.frames().size(); ++f)
      for (const PageEntry& entry : table.entries_of(table.frames()[f]))
        begins.insert(table.columns()[entry.column].first);
    alike |= columns > 16 && std::ssize(begins) < columns;
  }
  EXPECT_TRUE(alike);
}

// Where all that is left is on its way to a file that does not move, the queue still takes requests and cancels them.
TEST(Swap, AFileThatNeverEndsHoldsNobody) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  std::mt19937_64 random(7);
  RequestOptions options = random_request(random, {"h2o:budget=64,recent=32"}, 60);
  options.samples = 1;
  options.prompt = random_text(100, 3);
  options.generate.max_tokens = 80;
  options.generate.ignore_eos = true;
  const std::uint64_t most = alone(model, options).kv.bytes_peak;
  Desk desk(model, most * 5 / 4, {.prompt_rows = 30, .running = 10, .ahead = 0});
  desk.queue().swap_to(spill_to(std::make_unique<FaultyFile>(no_fault, 500)), true);
  options.priority = 1;
  const RequestId leaves = desk.add(options);
  for (int polls = 0; polls < 8; ++polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
  options.priority = 0;
  const RequestId takes = desk.add(options);
  for (int polls = 0; desk.queue().counters().swapped_out + desk.queue().counters().preempted == 0; ++polls) {
    ASSERT_LT(polls, 1000);
    ASSERT_NO_FATAL_FAILURE(desk.poll());
  }
  // All that is left is on its way out.
  ASSERT_TRUE(desk.queue().cancel(takes).ok());
  for (int polls = 0; polls < 5; ++polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
  EXPECT_EQ(desk.queue().unfinished(), 1);
  ASSERT_TRUE(desk.queue().cancel(leaves).ok());
  ASSERT_NO_FATAL_FAILURE(desk.poll());
  EXPECT_EQ(desk.queue().unfinished(), 0);
}

// Two requests are out, and the one that runs needs what one of them keeps in memory: the other comes back from the
// file.
TEST(Swap, OneRequestThatGrowsCostsTheOthersNoMoreThanItNeeds) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  RequestOptions options;
  options.policy = "full";
  options.prompt = random_text(60, 3);
  options.generate.sampling = {.temperature = 0, .seed = 5};
  options.generate.max_tokens = 40;
  options.generate.ignore_eos = true;
  RequestOptions grows = options;
  grows.generate.max_tokens = 200;
  const std::uint64_t most = alone(model, grows).kv.bytes_peak;
  bool one_alone = false;
  for (std::uint64_t beside = 0; beside < 16384 && !one_alone; beside += 32) {
    SCOPED_TRACE(beside);
    Desk desk(model, most + beside, {.prompt_rows = 200, .running = 10, .ahead = 0});
    desk.queue().swap_to(spill_to(std::make_unique<FaultyFile>(no_fault, 1)), true);
    options.priority = 1;
    for (int i = 0; i < 2; ++i) desk.add(options);
    for (int polls = 0; polls < 4; ++polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
    grows.priority = 0;
    desk.add(grows);
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    desk.expect_all_as_alone();
    const RequestQueue::Counters& counters = desk.queue().counters();
    one_alone = counters.swap_failed == 1 && counters.swapped_out == 2 && counters.swapped_in == 1;
  }
  EXPECT_TRUE(one_alone);
}

TEST(Swap, AFileWithoutRoomMeansComputingAgain) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  Outcomes outcomes;
  for (std::uint64_t seed = 4; seed < 24 && outcomes.preempted == 0; ++seed)
    ASSERT_NO_FATAL_FAILURE(run_crowd(
        model, seed, [] { return spill_to(std::make_unique<FaultyFile>(no_fault), 0); }, false, &outcomes));
  EXPECT_GT(outcomes.preempted, 0);
  EXPECT_EQ(outcomes.out, 0);
}

}  // namespace
}  // namespace kvasir::test
