// `h2o` against its definition: cumulative mass, sorted anew for every prune.
#include <fmt/core.h>

#include "retention/scored_checks.h"

namespace kvasir {
namespace {

using test::PassShape;
using test::TableMass;

struct NaiveH2o {
  std::int64_t budget = 0;
  std::int64_t recent = 0;
  std::int64_t sinks = 0;
  std::int64_t every = 1;
  int percent = 0;
  bool maximum = false;
  bool projected = false;
  int table = 0;
  std::vector<TokenIndex> kept;
  std::map<TokenIndex, double> score;

  void pass(TokenIndex first, const PassShape& shape, const TableMass& mass) {
    std::vector<TokenIndex> seen = kept;
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      seen.push_back(id);
      for (const TokenIndex key : seen)
        score[key] = maximum ? std::max(score[key], mass(id, key)) : score[key] + mass(id, key);
    }
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      kept.push_back(id);
      const std::int64_t target = percent > 0 ? std::max((percent * (id + 1) + 99) / 100, sinks + recent) : budget;
      if (std::ssize(kept) - target >= every) prune(target);
    }
  }

  void prune(std::int64_t target) {
    std::vector<TokenIndex> candidates(kept.begin() + sinks, kept.end() - recent);
    std::sort(candidates.begin(), candidates.end(), [&](TokenIndex a, TokenIndex b) {
      return score[a] != score[b] ? score[a] > score[b] : a > b;  // best first; of equals the younger
    });
    // The first half of the budget goes by score, the second by score and what the value becomes.
    if (projected) {
      const std::int64_t certain = std::max<std::int64_t>(target / 2 - sinks - recent, 0);
      const auto weight = [&](TokenIndex id) { return (score[id] + 1e-4) * test::projected_norm(table, id); };
      std::sort(candidates.begin() + certain, candidates.end(),
                [&](TokenIndex a, TokenIndex b) { return weight(a) != weight(b) ? weight(a) > weight(b) : a > b; });
    }
    candidates.resize(static_cast<std::size_t>(target - sinks - recent));
    std::vector<TokenIndex> left(kept.begin(), kept.begin() + sinks);
    std::sort(candidates.begin(), candidates.end());
    left.insert(left.end(), candidates.begin(), candidates.end());
    left.insert(left.end(), kept.end() - recent, kept.end());
    kept = left;
  }
};

TEST(H2o, KeepsWhatTheDefinitionKeeps) {
  const NaiveH2o cases[] = {
      {.budget = 16, .recent = 8},
      {.budget = 16, .recent = 8, .sinks = 2},
      {.budget = 16, .recent = 14, .sinks = 2},
      {.budget = 20, .recent = 0, .sinks = 0},
      {.budget = 20, .recent = 5, .sinks = 3, .every = 7},
      {.budget = 1, .recent = 0},
      {.budget = 30, .recent = 10, .sinks = 4, .every = 64},
      {.recent = 5, .sinks = 2, .percent = 30},
      {.recent = 0, .sinks = 0, .every = 4, .percent = 7},
      {.recent = 3, .sinks = 1, .percent = 100},
      {.budget = 16, .recent = 8, .maximum = true},
      {.budget = 20, .recent = 5, .sinks = 3, .every = 7, .maximum = true},
      {.budget = 16, .recent = 8, .projected = true},
      {.budget = 20, .recent = 0, .projected = true},
      {.budget = 24, .recent = 3, .sinks = 2, .every = 7, .projected = true},
      {.recent = 2, .sinks = 1, .percent = 30, .maximum = true, .projected = true},
  };
  for (const NaiveH2o& c : cases) {
    const std::string budget = c.percent > 0 ? fmt::format("{}%", c.percent) : fmt::format("{}", c.budget);
    const std::string spec = fmt::format("h2o:budget={},recent={},sinks={},every={},agg={},value={}", budget, c.recent,
                                         c.sinks, c.every, c.maximum ? "max" : "sum", c.projected ? "wo" : "off");
    for (const auto& schedule : test::schedules())
      for (const auto& mass : {test::random_mass(1), test::skewed_mass(2), test::random_mass(3, 2)})
        test::compare_with(spec, mass, schedule, [&](int) { return c; });
    const auto of_table = [&](int table) {
      NaiveH2o one = c;
      one.table = table;
      return one;
    };
    test::compare_with(spec + ",heads=independent", test::random_mass(4), test::schedules()[2], of_table,
                       {.layers = 2, .per_layer = 3, .heads = 2});
  }
}

TEST(H2o, OfEqualScoresTheYoungerStays) {
  const auto policy = test::policy_of_tables("h2o:budget=4,recent=1");
  test::TableDriver driver(*policy, {}, [](int, TokenIndex, TokenIndex) { return 0.0; });
  driver.generate(9);
  EXPECT_EQ(driver.held(), (std::vector<TokenIndex>{5, 6, 7, 8}));
  const auto batched = test::policy_of_tables("h2o:budget=4,recent=1,sinks=1,every=5");
  test::TableDriver late(*batched, {}, [](int, TokenIndex, TokenIndex) { return 0.0; });
  late.generate(9);
  EXPECT_EQ(late.held(), (std::vector<TokenIndex>{0, 6, 7, 8}));
}

TEST(H2o, BehavesAsEveryScoredPolicy) {
  for (const char* spec :
       {"h2o:budget=16,recent=8", "h2o:budget=12,recent=3,sinks=2,every=5", "h2o:budget=40%,recent=2",
        "h2o:budget=16,recent=8,heads=independent", "h2o:budget=20,recent=6,sinks=2,agg=max,value=wo",
        "h2o:budget=20,recent=0,every=3,value=wo,heads=independent"})
    test::check_scored_policy(spec);
}

TEST(H2o, IsDescribedByItsSpec) {
  const auto policy = test::policy_of_tables("h2o");
  EXPECT_EQ(reductions_of(*policy), std::vector{MassReduction::kSum});
  EXPECT_EQ(reductions_of(*test::policy_of_tables("h2o:agg=max")), std::vector{MassReduction::kMax});
  EXPECT_EQ(policy->traits().scope, PolicyScope::kLayer);
  EXPECT_EQ(policy->traits().positions, PositionMode::kAuto);
  EXPECT_EQ(policy->bound(), 1025);
  EXPECT_EQ(test::policy_of_tables("h2o:every=64,budget=600")->bound(), 664);
  EXPECT_EQ(test::policy_of_tables("h2o:budget=50%")->bound(), std::nullopt);
  EXPECT_EQ(test::policy_of_tables("h2o:heads=independent")->traits().scope, PolicyScope::kHead);
  EXPECT_EQ(test::policy_of_tables("h2o:pos=original")->traits().positions, PositionMode::kOriginal);
}

}  // namespace
}  // namespace kvasir
