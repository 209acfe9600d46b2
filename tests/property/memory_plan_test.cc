// The memory plan against real caches driven through the same passes.
#include "planning/memory_plan.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>

#include "backend/cpu/cpu_page_store.h"
#include "backend/cpu/kernels/kernels.h"
#include "retention/naive.h"

namespace kvasir {
namespace {

struct Outcome {
  bool fits = false;
  std::uint64_t peak = 0;
  std::uint64_t pages = 0;
  std::int64_t tokens_seen_max = 0;
};

enum class Bytes { kNone, kStored };  // of pages

// Sequences side by side, each pass of all before the drops of any.
Outcome run(const KvCacheShape& shape, const std::string& spec, const MemoryRequest& request, std::uint64_t budget,
            Bytes bytes) {
  Outcome outcome;
  ThreadPool threads(1);
  CpuPageStore store(&generic_kernels(), &threads, {Rotation{4, {1.0, 0.1}, 1}});
  auto cache = KvCache::create(shape, budget, bytes == Bytes::kStored ? &store : nullptr);
  if (!cache.ok()) return outcome;
  std::vector<KvSequence> sequences;
  std::vector<std::unique_ptr<RetentionPolicy>> policies;
  for (int s = 0; s < request.sequences; ++s) {
    policies.push_back(test::policy_of(spec));
    sequences.push_back((*cache)->new_sequence(sequence_layout(*policies.back())));
  }
  for (std::int64_t done = 0; done < request.tokens;) {
    // The grid of the engine: prompts end their passes at multiples of the chunk, what follows comes singly.
    std::int64_t want = 1;
    if (done < request.prompt)
      want = std::min({request.chunk - done % request.chunk, request.prompt - done, request.tokens - done});
    int rows = 0;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      rows = test::plan_pass(*policies[s], static_cast<int>(want)).rows;
      const Status status = sequences[s].only_table().append(rows);
      if (!status.ok()) {
        EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
        return outcome;
      }
      outcome.tokens_seen_max = std::max(outcome.tokens_seen_max, sequences[s].only_table().length());
    }
    done += rows;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      if (shape.page.encoded()) sequences[s].only_table().end_pass();
      const KeepPlan plan = test::end_chunk(*policies[s], rows);
      EXPECT_TRUE(sequences[s].only_table().apply(plan).ok());
      sequences[s].give_back();
    }
  }
  outcome.fits = true;
  outcome.peak = (*cache)->budget().peak();
  outcome.pages = (*cache)->pool().peak();
  return outcome;
}

void expect_exact(const KvCacheShape& shape, const std::string& spec, const MemoryRequest& request, Bytes stored) {
  SCOPED_TRACE(fmt::format("{} slots {} tokens {} prompt {} chunk {} sequences {}", spec, shape.page.slots,
                           request.tokens, request.prompt, request.chunk, request.sequences));
  const KvMemory plan = plan_kv_memory(shape, *test::policy_of(spec), request);
  EXPECT_EQ(plan.page_bytes, shape.page.bytes());
  EXPECT_EQ(plan.bytes, plan.pages * plan.page_bytes + plan.table_bytes);
  const Outcome roomy = run(shape, spec, request, 2 * plan.bytes + 1000000, stored);
  ASSERT_TRUE(roomy.fits);
  EXPECT_EQ(roomy.peak, plan.bytes);
  EXPECT_EQ(roomy.pages, plan.pages);
  EXPECT_EQ(roomy.tokens_seen_max, plan.tokens_seen_max);
  const Outcome exact = run(shape, spec, request, plan.bytes, stored);
  EXPECT_TRUE(exact.fits);
  EXPECT_EQ(exact.peak, plan.bytes);
  EXPECT_FALSE(run(shape, spec, request, plan.bytes - 1, stored).fits);
}

KvCacheShape shape_of(int slots, KvType type = KvType::kF16) {
  return {.layers = 3, .kv_heads = 2, .page = {.head_dim = 8, .slots = slots, .key = type}};
}

const char* const kSpecs[] = {
    "full",
    "window:size=1",
    "window:size=100",
    "streaming:sinks=4,window=60",
    "streaming:sinks=0,window=100,every=33",
    "streaming:sinks=20,window=100,every=64,slack=7,max_drop=10",
    "streaming:sinks=4,window=124,every=16,realign=rotate",
    "streaming:sinks=4,window=60,every=0",
    "streaming:cap=128",
    "streaming:sinks=200,window=3,every=5",
};

TEST(MemoryPlan, EqualsThePeakOfARealCacheToTheByte) {
  for (const char* spec : kSpecs)
    for (const int slots : {16, 32, 64})
      for (const int chunk : {1, 7, 64, 512})
        for (const std::int64_t prompt : {0, 1, 300, 1000})
          expect_exact(shape_of(slots), spec, {.tokens = 1000, .prompt = prompt, .chunk = chunk, .sequences = 1},
                       Bytes::kNone);
}

TEST(MemoryPlan, EqualsThePeakWithAStoreBehindThePages) {
  for (const char* spec : kSpecs)
    for (const KvType type : {KvType::kF32, KvType::kF16})
      expect_exact(shape_of(32, type), spec, {.tokens = 700, .prompt = 450, .chunk = 64, .sequences = 3},
                   Bytes::kStored);
}

// Of encoded pages a plan says whether it is exact: as few open pages as there can be may be at the peak, and the peak
// of pages need not be where the table is longest.
TEST(MemoryPlan, ExactMeansExactOfEncodedPages) {
  std::mt19937_64 random(6);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int exact = 0, atmost = 0;
  for (int round = 0; round < 600; ++round) {
    KvCacheShape shape{.layers = 2, .kv_heads = 2, .page = {.head_dim = 32, .slots = 32}};
    shape.page.key = shape.page.value = draw(0, 1) == 0 ? KvType::kQ8 : KvType::kQ4;
    shape.recent = draw(0, 1) * draw(0, 200);
    MemoryRequest request;
    request.tokens = draw(1, 2500);
    request.prompt = draw(0, static_cast<int>(request.tokens));
    request.chunk = draw(1, 600);
    const char* const kOf[] = {"full", "full", "window:size=100", "streaming:sinks=4,window=60", "streaming:cap=512"};
    const std::string spec = kOf[draw(0, 4)];
    SCOPED_TRACE(fmt::format("{} tokens {} prompt {} chunk {} recent {}", spec, request.tokens, request.prompt,
                             request.chunk, shape.recent));
    const KvMemory plan = plan_kv_memory(shape, *test::policy_of(spec), request);
    const Outcome roomy = run(shape, spec, request, 2 * plan.bytes + 1000000, Bytes::kNone);
    ASSERT_TRUE(roomy.fits);
    EXPECT_LE(roomy.peak, plan.bytes);
    if (plan.exact) {
      EXPECT_EQ(roomy.peak, plan.bytes);
    }
    ++(plan.exact ? exact : atmost);
  }
  EXPECT_GT(exact, 100);
  EXPECT_GT(atmost, 20);
}

TEST(MemoryPlan, RandomRequests) {
  std::mt19937_64 random(5);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 300; ++round) {
    MemoryRequest request;
    request.tokens = draw(1, 2500);
    request.prompt = draw(0, static_cast<int>(request.tokens));
    request.chunk = draw(1, 600);
    request.sequences = draw(1, 4);
    const std::string spec = fmt::format("streaming:sinks={},window={},every={},slack={},max_drop={}{}",
                                         draw(0, 1) * draw(0, 70), draw(1, 300), draw(1, 200), draw(0, 1) * draw(0, 50),
                                         draw(0, 1) * draw(0, 50), draw(0, 2) == 0 ? ",realign=rotate" : "");
    expect_exact(shape_of(16 << draw(0, 2)), spec, request, Bytes::kNone);
  }
}

// Pages behind a native sliding window are given back at the ends of chunks.
TEST(MemoryPlan, SlidingWindows) {
  for (const char* spec : kSpecs)
    for (const std::int64_t window : {1, 23, 64, 100, 700})
      for (const int chunk : {1, 7, 64, 512}) {
        KvCacheShape shape = shape_of(32);
        shape.window = window;
        SCOPED_TRACE(window);
        for (const std::int64_t prompt : {0, 300, 1000})
          expect_exact(shape, spec, {.tokens = 1000, .prompt = prompt, .chunk = chunk, .sequences = 1}, Bytes::kNone);
      }
  for (const char* spec : {"full", "streaming:window=1000,every=64", "window:size=777"})
    for (const int chunk : {100, 512}) {
      KvCacheShape shape = shape_of(16);
      shape.window = 300;
      expect_exact(shape, spec, {.tokens = 60000, .prompt = 60000, .chunk = chunk, .sequences = 1}, Bytes::kNone);
      expect_exact(shape, spec, {.tokens = 60000, .prompt = 1000, .chunk = chunk, .sequences = 2}, Bytes::kNone);
    }
}

// Streams far longer than the bound, where a plan may stop looking early.
TEST(MemoryPlan, LongStreams) {
  const MemoryRequest prompts{.tokens = 150000, .prompt = 150000, .chunk = 512, .sequences = 1};
  for (const char* spec :
       {"streaming", "streaming:window=1000,every=64", "window:size=777", "streaming:cap=4096,every=256"}) {
    expect_exact(shape_of(32), spec, prompts, Bytes::kNone);
    expect_exact(shape_of(32), spec, {.tokens = 150000, .prompt = 1000, .chunk = 512, .sequences = 1}, Bytes::kNone);
  }
}

// Every size of cache, not only multiples of a page: the plan of a text without end is enough for any length of it, and
// some length needs all of it.
TEST(MemoryPlan, EveryCap) {
  const KvCacheShape shape = shape_of(32);
  for (std::int64_t cap = 6; cap < 300; cap += cap < 140 ? 1 : 7) {
    const auto policy = make_policy("streaming:cap=" + std::to_string(cap));
    ASSERT_TRUE(policy.ok());
    for (const int chunk : {1, 64, 512}) {
      const auto bytes = [&](std::int64_t tokens) {
        return plan_kv_memory(shape, **policy, {.tokens = tokens, .prompt = tokens, .chunk = chunk}).bytes;
      };
      const std::uint64_t endless = bytes(std::int64_t{1} << 50);
      std::uint64_t largest = 0;
      for (std::int64_t tokens = 1; tokens < 2400; tokens += 1 + tokens / 50) {
        const std::uint64_t now = bytes(tokens);
        EXPECT_GE(now, largest) << "cap " << cap << " chunk " << chunk << " tokens " << tokens;
        EXPECT_LE(now, endless) << "cap " << cap << " chunk " << chunk << " tokens " << tokens;
        largest = now;
      }
      EXPECT_EQ(largest, endless) << "cap " << cap << " chunk " << chunk;
    }
  }
}

// Prunes and chunks that meet in all their phases only after far more tokens than the bound.
TEST(MemoryPlan, LongPeriods) {
  for (const char* spec : {"streaming:sinks=4,window=1342,every=1026", "streaming:sinks=3,window=2197,every=1022"})
    for (const int slots : {16, 32})
      expect_exact(shape_of(slots), spec, {.tokens = 300000, .prompt = 300000, .chunk = 512, .sequences = 1},
                   Bytes::kNone);
}

TEST(MemoryPlan, FullFollowsTheClosedFormula) {
  for (const int slots : {16, 32, 64})
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16})
      for (const std::int64_t tokens : {1, 15, 16, 17, 64, 1000, 4097})
        for (const int chunk : {1, 512}) {
          const KvCacheShape shape = shape_of(slots, type);
          const KvMemory plan = plan_kv_memory(shape, *test::policy_of("full"), {tokens, tokens, chunk, 5});
          const std::uint64_t columns = static_cast<std::uint64_t>((tokens + slots - 1) / slots);
          EXPECT_EQ(plan.pages, 5 * 3 * 2 * columns);
          EXPECT_EQ(plan.page_bytes, 2u * 8u * static_cast<unsigned>(slots) * (type == KvType::kF32 ? 4u : 2u));
          EXPECT_EQ(plan.tokens_seen_max, tokens);
          // Beside the pages: 12 bytes per page, and the arrays of one table per sequence.
          EXPECT_EQ(plan.table_bytes,
                    plan.pages * 12 + 5 * TableMemory::bytes_at(6, slots, {}, static_cast<std::int64_t>(columns)));
        }
}

// 2 * layers * KV heads * head size * bytes per element: 320 KiB a token for a Llama 3 70B, 40 GiB for 32 x 4096 of
// them.
TEST(MemoryPlan, ASeventyBillionModelTakesWhatTheFormulaSays) {
  for (const int slots : {16, 32, 64}) {
    const KvCacheShape shape{
        .layers = 80, .kv_heads = 8, .page = {.head_dim = 128, .slots = slots, .key = KvType::kF16}};
    EXPECT_EQ(static_cast<std::uint64_t>(shape.lanes()) * shape.page.bytes() / static_cast<unsigned>(slots),
              320u * 1024u);
    const auto full = test::policy_of("full");
    const KvMemory plan = plan_kv_memory(shape, *full, {.tokens = 4096, .prompt = 4096, .chunk = 512, .sequences = 32});
    EXPECT_EQ(plan.pages * plan.page_bytes, std::uint64_t{40} << 30);
    EXPECT_LT(plan.table_bytes, plan.bytes / 500);  // under 0.2%
    const KvMemory one = plan_kv_memory(shape, *full, {.tokens = 1, .prompt = 0, .chunk = 512, .sequences = 1});
    EXPECT_EQ(one.pages * one.page_bytes, 320u * 1024u * static_cast<unsigned>(slots));
  }
  // A 1B model: 16 layers, 8 KV heads of 64.
  const KvCacheShape small{.layers = 16, .kv_heads = 8, .page = {.head_dim = 64, .slots = 32, .key = KvType::kF16}};
  EXPECT_EQ(static_cast<std::uint64_t>(small.lanes()) * small.page.bytes() / 32, 32u * 1024u);
}

// Whatever part of the tokens is a prompt, a plan that reads all of them as one needs no less.
TEST(MemoryPlan, APlanOfPromptsCoversEveryMixture) {
  for (const char* spec : kSpecs) {
    const auto policy = test::policy_of(spec);
    const std::uint64_t most = plan_kv_memory(shape_of(32), *policy, {1500, 1500, 128, 1}).bytes;
    for (std::int64_t prompt = 0; prompt <= 1500; prompt += 61)
      EXPECT_LE(plan_kv_memory(shape_of(32), *policy, {1500, prompt, 128, 1}).bytes, most) << spec << ' ' << prompt;
  }
}

TEST(MemoryPlan, PlanningDoesNotChangeThePolicy) {
  const auto policy = test::policy_of("streaming:window=20");
  plan_kv_memory(shape_of(16), *policy, {500, 500, 64, 1});
  EXPECT_EQ(policy->seen(), 0);
}

}  // namespace
}  // namespace kvasir
