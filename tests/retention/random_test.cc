// `random`: how many it drops, that it drops at random, and that each table has its own draws.
#include <fmt/core.h>

#include <cmath>

#include "retention/scored_checks.h"

namespace kvasir {
namespace {

TEST(RandomPolicy, KeepsAsManyAsAskedAndTheProtected) {
  for (const int every : {1, 7})
    for (const auto& schedule : test::schedules()) {
      const auto policy = test::policy_of_tables(fmt::format("random:budget=20,sinks=3,recent=5,every={}", every));
      test::TableDriver driver(*policy, {}, {});
      std::int64_t expected = 0;
      for (const test::PassShape& shape : schedule) {
        driver.pass(shape.rows, shape.prompt, shape.prompt_left);
        for (int i = 0; i < shape.rows; ++i)
          if (++expected - 20 >= every) expected = 20;
        const auto held = driver.held();
        ASSERT_EQ(std::ssize(held), expected);
        const TokenIndex last = driver.next_id() - 1;
        for (TokenIndex id = 0; id < 3 && id <= last; ++id)
          ASSERT_TRUE(std::binary_search(held.begin(), held.end(), id));
        for (TokenIndex id = std::max<TokenIndex>(0, last - 4); id <= last; ++id)
          ASSERT_TRUE(std::binary_search(held.begin(), held.end(), id));
      }
    }
}

// Which of 21 tokens is dropped first, over many seeds: every unprotected one about equally often.
TEST(RandomPolicy, DropsUniformly) {
  for (const int every : {1, 6}) {
    std::map<TokenIndex, int> dropped;
    constexpr int kRounds = 4000;
    for (int seed = 0; seed < kRounds; ++seed) {
      const auto policy =
          test::policy_of_tables(fmt::format("random:budget=20,sinks=2,recent=3,every={},seed={}", every, seed));
      test::TableDriver driver(*policy, {}, {});
      driver.generate(20 + every);
      const auto held = driver.held();
      ASSERT_EQ(held.size(), 20u);
      for (TokenIndex id = 0; id < 20 + every; ++id)
        if (!std::binary_search(held.begin(), held.end(), id)) ++dropped[id];
    }
    const int candidates = 20 + every - 5;
    ASSERT_EQ(std::ssize(dropped), candidates);
    const double share = static_cast<double>(every) / candidates;
    const double deviation = std::sqrt(kRounds * share * (1 - share));
    for (const auto& [id, count] : dropped) {
      EXPECT_GE(id, 2);
      EXPECT_LT(id, 20 + every - 3);
      EXPECT_NEAR(count, kRounds * share, 5 * deviation) << id;
    }
  }
}

TEST(RandomPolicy, EachTableAndSeedHasItsOwnDraw) {
  const TableLayout layout{.layers = 2, .per_layer = 2};
  const auto policy = test::policy_of_tables("random:budget=30,heads=independent", layout);
  test::TableDriver driver(*policy, layout, {});
  driver.generate(200);
  for (int a = 0; a < 4; ++a)
    for (int b = 0; b < a; ++b) EXPECT_NE(driver.held(a), driver.held(b));
  const auto other = test::policy_of_tables("random:budget=30,seed=2,heads=independent", layout);
  test::TableDriver second(*other, layout, {});
  second.generate(200);
  EXPECT_NE(driver.held(0), second.held(0));
}

// The draw is part of what a spec means: these ids do not change.
TEST(RandomPolicy, IsTheSameEverywhere) {
  const auto policy = test::policy_of_tables("random:budget=8");
  test::TableDriver driver(*policy, {}, {});
  driver.generate(40);
  EXPECT_EQ(driver.held(), (std::vector<TokenIndex>{20, 26, 30, 31, 35, 36, 38, 39}));
}

TEST(RandomPolicy, BehavesAsEveryScoredPolicy) {
  for (const char* spec :
       {"random:budget=16", "random:budget=12,recent=3,sinks=2,every=5", "random:budget=40%,recent=2"})
    test::check_scored_policy(spec);
}

TEST(RandomPolicy, IsDescribedByItsSpec) {
  const auto policy = test::policy_of_tables("random");
  EXPECT_EQ(policy->traits().spec, "random:budget=1024,seed=1");
  EXPECT_TRUE(policy->as<ObservesMasses>() == nullptr);
  EXPECT_EQ(policy->bound(), 1025);
}

}  // namespace
}  // namespace kvasir
