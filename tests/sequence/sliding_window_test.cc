// Models with a native sliding window under policies by range: pages behind the window are given back, and nothing else
// changes. The oracle is the same engine on a cache whose shape has no window, which gives nothing back.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "kv/table.h"
#include "planning/memory_plan.h"
#include "sequence/policy_cases.h"
#include "session/through_a_file.h"
#include "support/engine_fixture.h"

namespace kvasir::test {
namespace {

constexpr int kWindow = 23;

const std::vector<std::string> kPolicies = {
    "full",
    "window:size=18",
    "window:size=60",
    "streaming:sinks=4,window=36",
    "streaming:sinks=0,window=70,every=8",
    "streaming:sinks=20,window=40,every=5,slack=3,max_drop=4",
    // The first drop brings the sinks from beyond the window back into it.
    "streaming:sinks=4,window=12,every=40",
    "streaming:sinks=4,window=44,every=16,realign=rotate",
    "streaming:sinks=4,window=60,every=0",
};

class SlidingWindow : public ::testing::Test {
 protected:
  SlidingWindow() : file_(make_random_model(spec())) {}

  static RandomModelSpec spec() {
    RandomModelSpec spec = small_spec();
    spec.sliding_window = kWindow;
    spec.context = 1000;
    return spec;
  }
  std::shared_ptr<LoadedModel> load_with(int slots) { return load(file_.path(), {.threads = 1, .page_slots = slots}); }
  static std::shared_ptr<KvCache> cache_of(const std::shared_ptr<LoadedModel>& model, Position window,
                                           std::uint64_t budget = std::uint64_t{1} << 26) {
    KvCacheShape shape = model->kv_shape;
    shape.window = window;
    auto cache = new_cache(model, shape, budget);
    EXPECT_TRUE(cache.ok()) << cache.status().message();
    return *cache;
  }
  static std::unique_ptr<SequenceRunner> runner_on(const std::shared_ptr<LoadedModel>& model,
                                                   const std::shared_ptr<KvCache>& cache, const std::string& policy) {
    return std::make_unique<SequenceRunner>(model, cache, std::move(*make_policy(policy)));
  }

  TemporaryFile file_;
};

TEST_F(SlidingWindow, TheModelHasOne) {
  EXPECT_EQ(load_with(16)->kv_shape.window, kWindow);
}

TEST_F(SlidingWindow, PagesAreGivenBackAndLogitsKeepTheirBits) {
  for (const int slots : {16, 32}) {
    const auto model = load_with(slots);
    for (const std::string& policy : kPolicies)
      for (const int chunk : {1, 7, 64}) {
        SCOPED_TRACE(fmt::format("{} slots {} chunk {}", policy, slots, chunk));
        const Text text(300, 60, 3);
        const auto whole = cache_of(model, 0), windowed = cache_of(model, kWindow);
        const auto reference = runner_on(model, whole, policy), runner = runner_on(model, windowed, policy);
        const std::vector<float> expected = run_text(*reference, text, chunk);
        int most_columns = 0;
        const PageTable& table = runner->sequence().only_table();
        const std::vector<float> logits = run_text(
            *runner, text, chunk, [&](int) { most_columns = std::max(most_columns, table.columns().count()); });
        EXPECT_TRUE(same_bits(logits, expected));
        EXPECT_EQ(table.length(), reference->sequence().only_table().length());
        EXPECT_EQ(runner->counters().first_dropped, reference->counters().first_dropped);
        const std::vector<const KvSequence*> all = {&runner->sequence()};
        windowed->check_invariants(all);
        // Sinks, the window, a chunk, and parts of pages at the four ends.
        const auto sinks = static_cast<int>(runner->policy().traits().sinks);
        EXPECT_LE(most_columns, (sinks + kWindow + chunk) / slots + 4);
        std::vector<TokenIndex> stored = retained_ids(reference->sequence().only_table());
        std::erase_if(stored,
                      [hole = table.tokens().given_back](TokenIndex t) { return t >= hole.begin && t < hole.end; });
        EXPECT_EQ(retained_ids(table), stored);
        EXPECT_EQ(table.tokens().stored(), static_cast<std::int64_t>(stored.size()));
        if (policy == "full" || policy == "streaming:sinks=4,window=60,every=0") {
          EXPECT_EQ(table.length(), 360);
          EXPECT_LT(table.tokens().stored(), kWindow + slots + 32);
          EXPECT_LT(windowed->budget().peak(), whole->budget().peak() / 2);
        }
      }
  }
}

TEST_F(SlidingWindow, ForksAndSessionsContinueWithTheSameBits) {
  const auto model = load_with(16);
  for (const std::string& policy : kPolicies) {
    SCOPED_TRACE(policy);
    const Text text(150, 20, 5), more(80, 40, 7);
    const auto cache = cache_of(model, kWindow);
    const auto reference = runner_on(model, cache_of(model, 0), policy), runner = runner_on(model, cache, policy);
    run_text(*reference, text, 32);
    run_text(*runner, text, 32);
    ASSERT_FALSE(runner->sequence().only_table().tokens().given_back.empty());
    auto fork = runner->fork();
    ASSERT_TRUE(fork.ok());
    LoadedSession loaded = through_a_file(runner->whole(), 32, model, cache_of(model, kWindow));
    ASSERT_NE(loaded.sequence, nullptr);
    SequenceRunner again(std::move(loaded.sequence));
    EXPECT_EQ(again.whole().truncatable_from(), runner->whole().truncatable_from());
    EXPECT_EQ(retained_ids(again.sequence().only_table()), retained_ids(runner->sequence().only_table()));
    const std::vector<float> expected = run_text(*reference, more, 32);
    EXPECT_TRUE(same_bits(run_text(**fork, more, 32), expected));
    EXPECT_TRUE(same_bits(run_text(again, more, 32), expected));
    EXPECT_TRUE(same_bits(run_text(*runner, more, 32), expected));
    const std::vector<const KvSequence*> all = {&runner->sequence(), &(*fork)->sequence()};
    cache->check_invariants(all);
  }
}

// A text cut to truncatable_from() tokens finds all that its next token attends to; one token less, and it would not.
TEST_F(SlidingWindow, TheEarliestBoundaryIsThatOfTheFirstPageMissed) {
  const auto model = load_with(16);
  const auto runner = runner_on(model, cache_of(model, kWindow), "full");
  EXPECT_EQ(runner->whole().truncatable_from(), 0);
  run_text(*runner, Text(100, 0, 5), 32);
  const PageTable& table = runner->sequence().only_table();
  const TokenIndex boundary = runner->whole().truncatable_from();
  EXPECT_LE(boundary, 100);
  // Token t attends to [t - window + 1, t].
  EXPECT_EQ(boundary - kWindow + 1, table.tokens().given_back.end);
  EXPECT_EQ(table.tokens().given_back, (IndexRange{0, 64}));
  const auto dropping = runner_on(model, cache_of(model, kWindow), "window:size=60");
  run_text(*dropping, Text(100, 0, 5), 32);
  EXPECT_EQ(dropping->whole().truncatable_from(), 100);
}

TEST_F(SlidingWindow, ThePlanIsThePeakToTheByte) {
  for (const int slots : {16, 32}) {
    const auto model = load_with(slots);
    for (const std::string& policy : kPolicies)
      for (const int chunk : {1, 7, 64}) {
        SCOPED_TRACE(fmt::format("{} slots {} chunk {}", policy, slots, chunk));
        const Text text(250, 50, 9);
        const KvMemory plan = plan_kv_memory(model->kv_shape, **make_policy(policy), {300, 250, chunk, 1});
        EXPECT_TRUE(plan.exact);
        const auto cache = cache_of(model, kWindow, plan.bytes);
        run_text(*runner_on(model, cache, policy), text, chunk);
        EXPECT_EQ(cache->budget().peak(), plan.bytes);
      }
  }
}

// Policies that look at attention may bring any token nearer: they mask.
TEST_F(SlidingWindow, PoliciesByAttentionGiveNothingBack) {
  const auto model = load_with(16);
  const auto runner = runner_on(model, cache_of(model, kWindow), "h2o:budget=60,recent=30");
  run_text(*runner, Text(150, 20, 5), 32);
  for (int t = 0; t < runner->sequence().tables(); ++t) {
    EXPECT_TRUE(runner->sequence().table(t).tokens().given_back.empty());
    EXPECT_EQ(runner->sequence().table(t).tokens().stored(), 60);
  }
}

}  // namespace
}  // namespace kvasir::test
