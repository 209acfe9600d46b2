// Models that mix layers with a window of their own and layers that see everything: the windows keep their last tokens
// at original positions under every policy, and give all other pages back; what a policy decides is that of the layers
// it governs.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "kv/table.h"
#include "planning/memory_plan.h"
#include "requests/request_desk.h"
#include "sequence/policy_cases.h"
#include "session/through_a_file.h"
#include "support/engine_fixture.h"

namespace kvasir::test {
namespace {

constexpr int kGroupWindow = 23;

const std::vector<std::string> kGroupPolicies = {
    "full",
    "window:size=18",
    "window:size=60",
    "streaming:sinks=4,window=36",
    "streaming:sinks=0,window=70,every=8",
    "streaming:sinks=20,window=40,every=5,slack=3,max_drop=4",
    "streaming:sinks=4,window=44,every=16,realign=rotate",
};

class WindowGroups : public ::testing::Test {
 protected:
  WindowGroups() : file_(make_random_model(spec())) {}

  // Layers 0, 2 and 4 have a window; quest reads all of the first two that it governs.
  static RandomModelSpec spec() {
    RandomModelSpec spec = small_spec();
    spec.architecture = "gemma3";
    spec.layers = 6;
    spec.sliding_window = kGroupWindow;
    spec.window_pattern = 2;
    spec.context = 1000;
    return spec;
  }
  std::shared_ptr<LoadedModel> load_with(int slots, const std::string& kv_type = "f16") {
    return load(file_.path(), {.threads = 1, .kv_type = kv_type, .page_slots = slots});
  }
  static std::vector<std::string> policies() {
    std::vector<std::string> all = kGroupPolicies;
    all.emplace_back("quest:budget=48");
    for (const PolicyCases& cases : all_policy_cases()) {
      all.push_back(cases.evicting.front());
      all.push_back(cases.evicting.back());
    }
    return all;
  }
  static std::unique_ptr<SequenceRunner> runner_on(const std::shared_ptr<LoadedModel>& model,
                                                   const std::shared_ptr<KvCache>& cache, const std::string& policy) {
    return std::make_unique<SequenceRunner>(model, cache, std::move(*make_policy(policy)));
  }
  static const PageTable& window_of(const SequenceRunner& runner) {
    return runner.sequence().table(runner.sequence().governed_tables());
  }

  TemporaryFile file_;
};

TEST_F(WindowGroups, AreReadFromTheModel) {
  const KvCacheShape shape = load_with(16)->kv_shape;
  EXPECT_EQ(shape.layers, 3);
  EXPECT_EQ(shape.window, 0);
  ASSERT_EQ(shape.windows.size(), 1u);
  EXPECT_EQ(shape.windows[0], (WindowGroup{3, 2, 8, 1, kGroupWindow}));
  EXPECT_EQ(shape.group_of_layer, (std::vector<std::uint8_t>{1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(shape.all_lanes(), 12);
}

TEST_F(WindowGroups, KeepTheirLastTokensUnderEveryPolicy) {
  const auto model = load_with(16);
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    const auto cache = *new_cache(model, std::uint64_t{1} << 26);
    const auto runner = runner_on(model, cache, policy);
    int most = 0;
    run_text(*runner, Text(200, 40, 3), 32, [&](int) { most = std::max(most, window_of(*runner).columns().count()); });
    const PageTable& window = window_of(*runner);
    EXPECT_EQ(window.next_index(), 240);
    std::vector<TokenIndex> expected;
    for (TokenIndex t = window.tokens().given_back.end; t < 240; ++t) expected.push_back(t);
    EXPECT_EQ(retained_ids(window), expected);
    EXPECT_LE(window.tokens().given_back.end, 240 - kGroupWindow + 1);  // token 240 sees 22 tokens before itself
    EXPECT_GT(window.tokens().given_back.end, 240 - kGroupWindow + 1 - 16);
    EXPECT_LE(most, (kGroupWindow + 32) / 16 + 2);
    const std::vector<const KvSequence*> all = {&runner->sequence()};
    cache->check_invariants(all, runner->whole().state_bytes());
  }
}

// The policies hide and drop by the tokens of a chunk, or nothing at all.
TEST_F(WindowGroups, ChunksChangeNoBits) {
  for (const char* type : {"f16", "q4", "k=q8,v=q2,recent=24"}) {
    const auto model = load_with(16, type);
    for (const std::string& policy : kGroupPolicies) {
      if (policy.find("rotate") != std::string::npos) continue;  // the chunk decides when keys are rotated
      SCOPED_TRACE(fmt::format("{} {}", type, policy));
      const Text text(150, 30, 5);
      const std::vector<float> one = run_text(*new_runner(model, policy), text, 1);
      for (const int chunk : {7, 32, 64})
        EXPECT_TRUE(same_bits(run_text(*new_runner(model, policy), text, chunk), one));
    }
  }
}

TEST_F(WindowGroups, ForksAndSessionsContinueWithTheSameBits) {
  for (const char* type : {"f16", "q4"}) {
    const auto model = load_with(16, type);
    for (const std::string& policy : policies()) {
      SCOPED_TRACE(fmt::format("{} {}", type, policy));
      const Text text(150, 20, 5), more(80, 40, 7);
      const auto runner = new_runner(model, policy), reference = new_runner(model, policy);
      run_text(*runner, text, 32);
      run_text(*reference, text, 32);
      auto fork = runner->fork();
      ASSERT_TRUE(fork.ok());
      LoadedSession loaded = through_a_file(runner->whole(), 32, model);
      ASSERT_NE(loaded.sequence, nullptr);
      SequenceRunner again(std::move(loaded.sequence));
      EXPECT_EQ(again.whole().truncatable_from(), runner->whole().truncatable_from());
      EXPECT_EQ(retained_ids(window_of(again)), retained_ids(window_of(*runner)));
      const std::vector<float> expected = run_text(*reference, more, 32);
      EXPECT_TRUE(same_bits(run_text(**fork, more, 32), expected));
      EXPECT_TRUE(same_bits(run_text(again, more, 32), expected));
      EXPECT_TRUE(same_bits(run_text(*runner, more, 32), expected));
    }
  }
}

TEST_F(WindowGroups, ThePlanIsThePeakOfAllGroupsTogether) {
  for (const auto& [slots, type] : {std::pair{16, "f16"}, {32, "f16"}, {16, "q4"}, {16, "k=q8,v=q2,recent=24"}}) {
    const auto model = load_with(slots, type);
    const bool encoded = model->kv_shape.page.encoded();
    for (const std::string& policy : policies())
      for (const int chunk : {1, 7, 64})
        for (const auto& [prompt, generated] : {std::pair{250, 50}, {30, 150}}) {
          if (chunk == 1 && prompt == 250) continue;  // as much is generated one by one
          SCOPED_TRACE(fmt::format("{} {} slots {} chunk {} prompt {}", type, policy, slots, chunk, prompt));
          const auto made = std::move(*make_policy(policy));
          const KvMemory plan = plan_kv_memory(model->kv_shape, *made, {prompt + generated, prompt, chunk, 1});
          const auto cache = *new_cache(model, std::max(plan.bytes, KvCache::cost(model->kv_shape, {}, 1)));
          run_text(*runner_on(model, cache, policy), Text(prompt, generated, 9), chunk);
          EXPECT_LE(cache->budget().peak(), plan.bytes);
          EXPECT_EQ(plan.exact, !encoded && made->as<ObservesMasses>() == nullptr && !made->traits().compacts);
          if (plan.exact && made->as<LeavesUnread>() == nullptr) {
            EXPECT_EQ(cache->budget().peak(), plan.bytes);
          }
        }
  }
}

// Only the layers that see everything grow with the text.
TEST_F(WindowGroups, GrowNoFurther) {
  const auto model = load_with(32);
  const auto full = std::move(*make_policy("full"));
  const auto planned = [&](std::int64_t tokens) {
    return plan_kv_memory(model->kv_shape, *full, {tokens, tokens, 64, 1});
  };
  const KvMemory some = planned(8192), many = planned(32768);
  EXPECT_TRUE(many.exact);
  EXPECT_EQ(many.windows[0].pages, some.windows[0].pages);
  EXPECT_EQ(many.pages, 32768 / 32 * 6);
  EXPECT_LE(some.windows[0].pages, static_cast<std::uint64_t>((kGroupWindow + 64) / 32 + 2) * 6);
}

// Requests that give way in little memory, and come back.
TEST_F(WindowGroups, PreemptedRequestsAreAsAlone) {
  std::int64_t preempted = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const auto model = load_with(16, seed % 2 == 0 ? "f16" : "q4");
    std::mt19937_64 random(seed);
    std::vector<RequestOptions> requests;
    std::uint64_t most = 0;
    for (int i = 0; i < 12; ++i) {
      requests.push_back(random_request(random, policies_for_requests(), 60));
      const RequestOptions& options = requests.back();
      for (int sample = 0; sample < options.samples; ++sample)
        most = std::max(most, alone(model, options, sample).kv.bytes_peak * static_cast<unsigned>(options.samples));
    }
    Desk desk(model, most * 3 / 2, {.prompt_rows = 40, .ahead = 0});
    for (const RequestOptions& options : requests) desk.add(options);
    ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
    ASSERT_NO_FATAL_FAILURE(desk.expect_all_as_alone());
    preempted += desk.queue().counters().preempted;
  }
  EXPECT_GT(preempted, 0);
}

// What was generated is read again in chunks when a request comes back; windows must not fill up with it.
TEST_F(WindowGroups, ARecomputedTextTakesNoMoreThanWasPlanned) {
  const auto model = load_with(16);
  RequestOptions options;
  options.policy = "full";
  options.generate.max_tokens = 250;
  options.generate.ignore_eos = true;
  options.generate.sampling.temperature = 0;
  options.generate.sampling.seed = 1;
  const KvMemory plan = plan_kv_memory(model->kv_shape, **make_policy("full"), {300, 40, 0, 1});
  Desk desk(model, plan.bytes * 21 / 20, {.prompt_rows = 40, .ahead = 0});
  // The second comes when the first is nearly done, and goes before it.
  for (int i = 0; i < 2; ++i) {
    options.prompt = random_text(20, static_cast<std::uint64_t>(i));
    options.priority = 1 - i;
    desk.add(options);
    for (int polls = 0; i == 0 && polls < 235; ++polls) ASSERT_NO_FATAL_FAILURE(desk.poll());
  }
  ASSERT_NO_FATAL_FAILURE(desk.run_to_end());
  ASSERT_NO_FATAL_FAILURE(desk.expect_all_as_alone());
  EXPECT_GT(desk.queue().counters().preempted, 0);
  EXPECT_GT(desk.queue().counters().recomputed_tokens, 200);
}

}  // namespace
}  // namespace kvasir::test
