// The memory plan of chunks that are read in several passes, against real tables driven through all ways to divide
// them.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "planning/memory_plan.h"
#include "retention/naive.h"

namespace kvasir {
namespace {

// Returns where the next pass of a chunk of `rows` rows ends, after `done` of them.
using Divide = std::function<int(int done, int rows)>;

std::uint64_t peak_of(const KvCacheShape& shape, const std::string& spec, const MemoryRequest& request,
                      const Divide& divide) {
  auto cache = KvCache::create(shape, std::uint64_t{1} << 30);
  EXPECT_TRUE(cache.ok());
  const auto policy = test::policy_of(spec);
  KvSequence sequence = (*cache)->new_sequence(sequence_layout(*policy));
  PageTable& table = sequence.only_table();
  for (std::int64_t done = 0; done < request.tokens;) {
    std::int64_t want = 1;
    if (done < request.prompt)
      want = std::min({request.chunk - done % request.chunk, request.prompt - done, request.tokens - done});
    const int rows = test::plan_pass(*policy, static_cast<int>(want)).rows;
    for (int row = 0; row < rows;) {
      const int end = divide(row, rows);
      EXPECT_TRUE(table.append(end - row).ok());
      table.end_pass();
      row = end;
    }
    done += rows;
    EXPECT_TRUE(table.apply(test::end_chunk(*policy, rows)).ok());
    sequence.give_back();
  }
  return (*cache)->budget().peak();
}

const char* const kSpecs[] = {"full",
                              "window:size=2",
                              "window:size=100",
                              "streaming:cap=33",
                              "streaming:sinks=20,window=60,every=33",
                              "streaming:sinks=4,window=60,every=16"};

KvCacheShape shape_of(KvType type, int slots, int recent) {
  return {.layers = 2,
          .kv_heads = 2,
          .page = {.head_dim = 32, .slots = slots, .key = type, .value = type},
          .window = 0,
          .recent = recent};
}

// Every moment is the end of some pass, and only where that began matters: three passes to a chunk reach them all.
TEST(DividedPlan, IsTheMostThatSomeDivisionTakes) {
  for (const KvType type : {KvType::kQ8, KvType::kQ2})
    for (const char* spec : kSpecs)
      for (const int recent : {0, 20, 64}) {
        const KvCacheShape shape = shape_of(type, 16, recent);
        for (const auto& [tokens, chunk] : {std::pair{50, 50}, {170, 41}}) {
          const MemoryRequest request{.tokens = tokens, .prompt = tokens, .chunk = chunk, .divided = true};
          std::uint64_t most = 0;
          std::uint64_t least = ~std::uint64_t{0};
          for (int first = 0; first < chunk; ++first)
            for (int second = first + 1; second <= chunk; ++second) {
              const std::uint64_t peak = peak_of(shape, spec, request, [&](int done, int rows) {
                return std::min(rows, done < first ? first : done < second ? second : rows);
              });
              most = std::max(most, peak);
              least = std::min(least, peak);
            }
          const KvMemory plan = plan_kv_memory(shape, *test::policy_of(spec), request);
          SCOPED_TRACE(fmt::format("{} recent {} tokens {} chunk {}", spec, recent, tokens, chunk));
          EXPECT_EQ(plan.bytes, most);
          if (plan.exact) {
            EXPECT_EQ(least, most);
          }
        }
      }
}

TEST(DividedPlan, IsNeverExceededAndEqualWhereItSaysSo) {
  std::mt19937_64 random(3);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int exact = 0;
  for (int round = 0; round < 600; ++round) {
    const KvType types[] = {KvType::kQ8, KvType::kQ4, KvType::kQ2, KvType::kF16};
    const KvCacheShape shape = shape_of(types[draw(0, 3)], 16 << draw(0, 1), draw(0, 2) * draw(0, 64));
    const std::string spec = kSpecs[draw(0, static_cast<int>(std::size(kSpecs)) - 1)];
    MemoryRequest request{.tokens = draw(1, 1200), .chunk = draw(1, 512), .divided = true};
    request.prompt = draw(0, static_cast<int>(request.tokens));
    const KvMemory plan = plan_kv_memory(shape, *test::policy_of(spec), request);
    exact += plan.exact;
    SCOPED_TRACE(fmt::format("{} slots {} recent {} tokens {} prompt {} chunk {}", spec, shape.page.slots, shape.recent,
                             request.tokens, request.prompt, request.chunk));
    for (const int most_rows : {1, 64, 256, 1024}) {
      const std::uint64_t peak = peak_of(shape, spec, request, [&](int done, int rows) {
        return std::min(rows, done + (most_rows == 64 ? draw(1, 64) : most_rows));
      });
      EXPECT_LE(peak, plan.bytes);
      if (plan.exact) {
        EXPECT_EQ(peak, plan.bytes);
      }
    }
  }
  EXPECT_GT(exact, 200) << "where tokens are generated, passes are of one row";
}

}  // namespace
}  // namespace kvasir
