// `tova` against its definition: the current row alone decides.
#include <fmt/core.h>

#include "retention/scored_checks.h"

namespace kvasir {
namespace {

using test::PassShape;
using test::TableMass;

struct NaiveTova {
  std::int64_t budget = 0;
  std::int64_t every = 1;
  int percent = 0;
  std::vector<TokenIndex> kept;

  void pass(TokenIndex first, const PassShape& shape, const TableMass& mass) {
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      kept.push_back(id);
      const std::int64_t target = percent > 0 ? (percent * (id + 1) + 99) / 100 : budget;
      if (std::ssize(kept) - target < every) continue;
      std::sort(kept.begin(), kept.end(), [&](TokenIndex a, TokenIndex b) {
        return mass(id, a) != mass(id, b) ? mass(id, a) > mass(id, b) : a > b;
      });
      kept.resize(static_cast<std::size_t>(target));
      std::sort(kept.begin(), kept.end());
    }
  }
};

TEST(Tova, KeepsWhatTheDefinitionKeeps) {
  const NaiveTova cases[] = {{.budget = 1},  {.budget = 12},  {.budget = 12, .every = 5}, {.budget = 30, .every = 64},
                             {.percent = 7}, {.percent = 50}, {.every = 6, .percent = 25}};
  for (const NaiveTova& c : cases) {
    const std::string budget = c.percent > 0 ? fmt::format("{}%", c.percent) : fmt::format("{}", c.budget);
    const std::string spec = fmt::format("tova:budget={},every={}", budget, c.every);
    for (const auto& schedule : test::schedules())
      for (const auto& mass : {test::random_mass(1), test::skewed_mass(2), test::random_mass(3, 2)})
        test::compare_with(spec, mass, schedule, [&](int) { return c; });
    test::compare_with(spec + ",heads=independent", test::random_mass(4), test::schedules()[2], [&](int) { return c; },
                       {.layers = 2, .per_layer = 3, .heads = 2});
  }
}

TEST(Tova, BehavesAsEveryScoredPolicy) {
  for (const char* spec :
       {"tova:budget=16", "tova:budget=12,every=5", "tova:budget=40%", "tova:budget=9,heads=independent"})
    test::check_scored_policy(spec);
}

TEST(Tova, IsDescribedByItsSpec) {
  const auto policy = test::policy_of_tables("tova");
  EXPECT_EQ(reductions_of(*policy), std::vector{MassReduction::kMean});
  EXPECT_EQ(policy->traits().scope, PolicyScope::kLayer);
  EXPECT_EQ(policy->bound(), 1025);
  EXPECT_EQ(test::policy_of_tables("tova:every=8,budget=10")->bound(), 18);
  EXPECT_EQ(test::policy_of_tables("tova:budget=50%")->bound(), std::nullopt);
}

}  // namespace
}  // namespace kvasir
