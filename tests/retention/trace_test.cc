// What the policies keep of a published example: 48 tokens, one at a time.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "retention/naive.h"
#include "support/shared_data.h"

namespace kvasir {
namespace {

TEST(PolicyTrace, KeepsWhatTheExampleKeeps) {
  KVASIR_SHARED_OR_SKIP(path, "traces/example.json");
  std::ifstream file(path);
  const auto example = nlohmann::json::parse(file);
  constexpr TokenIndex kTokens = 48;
  for (const std::string spec : {"window:size=12", "streaming:sinks=2,window=10,every=4"}) {
    SCOPED_TRACE(spec);
    ASSERT_TRUE(example.contains(spec));
    const auto& layers = example[spec]["layers"];
    ASSERT_FALSE(layers.empty());
    for (const int chunk : {1, 5, 48}) {
      const auto policy = test::policy_of(spec);
      const auto cache = test::table_only(16, 10);
      KvSequence sequence = cache->new_sequence();
      std::int64_t kept_sum = 0, kept_max = 0;
      test::drive(
          *policy, *cache, sequence, kTokens, [&](TokenIndex) { return chunk; },
          [](const PageTable&, const test::PassPlan&) {},
          [&](const PageTable& table, const test::PassPlan&) {
            kept_sum += table.length();
            kept_max = std::max(kept_max, table.length());
          });
      for (const auto& layer : layers) {
        EXPECT_EQ(test::retained_ids(sequence.only_table()), layer["final"].get<std::vector<TokenIndex>>());
        if (chunk != 1) continue;
        EXPECT_DOUBLE_EQ(static_cast<double>(kept_sum) / kTokens, layer["kept_mean"].get<double>());
        EXPECT_EQ(kept_max, layer["kept_max"].get<std::int64_t>());
      }
    }
  }
}

}  // namespace
}  // namespace kvasir
