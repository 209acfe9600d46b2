// `cascade` against its definition: sub-caches as lists, and the rule as it is written.
#include <fmt/core.h>

#include <cmath>
#include <deque>

#include "retention/scored_checks.h"

namespace kvasir {
namespace {

using test::PassShape;
using test::TableMass;

struct NaiveCascade {
  std::int64_t size = 16;
  int n = 4;
  std::int64_t sinks = 2;
  std::int64_t accept = 2;
  double gamma = -1;  // auto
  bool select = true;

  std::vector<TokenIndex> sink_ids;
  std::vector<std::deque<TokenIndex>> sub;  // oldest first
  std::map<TokenIndex, double> mu;
  std::int64_t clock = 0;
  int replaced = 0;
  std::vector<TokenIndex> kept;

  void pass(TokenIndex first, const PassShape& shape, const TableMass& mass) {
    sub.resize(static_cast<std::size_t>(n));
    const double decay = gamma < 0 ? std::exp(-n * std::log(100.0) / static_cast<double>(size)) : gamma;
    std::vector<TokenIndex> seen = kept;
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      seen.push_back(id);
      for (const TokenIndex key : seen) mu[key] = decay * mu[key] + (1 - decay) * mass(id, key);
    }
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      if (std::ssize(sink_ids) < sinks)
        sink_ids.push_back(id);
      else
        offer(id, 0, clock++);
    }
    kept = sink_ids;
    for (auto cache = sub.rbegin(); cache != sub.rend(); ++cache) kept.insert(kept.end(), cache->begin(), cache->end());
  }

  void offer(TokenIndex x, int i, std::int64_t s) {
    if (i == n) return;
    auto& cache = sub[static_cast<std::size_t>(i)];
    std::int64_t period = 1;
    for (int k = 0; k < i; ++k) period *= accept;
    if (s % period == 0) {
      if (std::ssize(cache) < size / n) {
        cache.push_back(x);
        return;
      }
      cache.push_back(x);
      x = cache.front();
      cache.pop_front();
      offer(x, i + 1, s);
      return;
    }
    if (cache.empty()) {
      cache.push_back(x);
      return;
    }
    if (select && mu[x] > mu[cache.back()]) {
      cache.back() = x;
      ++replaced;
    }
  }

  std::vector<TokenIndex> run(int which) const {
    std::vector<TokenIndex> ids;
    if (which == 0) ids = sink_ids;
    if (sub.empty()) return ids;
    const auto& cache = sub[static_cast<std::size_t>(which)];
    ids.insert(ids.end(), cache.begin(), cache.end());
    return ids;
  }
};

// Also the runs: what the plans moved where.
void compare(const NaiveCascade& start, const test::MassSource& mass, const std::vector<PassShape>& schedule,
             int& replaced) {
  const std::string spec =
      fmt::format("cascade:size={},n={},sinks={},accept={},gamma={},select={}", start.size, start.n, start.sinks,
                  start.accept, start.gamma < 0 ? "auto" : fmt::format("{}", start.gamma), start.select ? "on" : "off");
  SCOPED_TRACE(spec);
  const auto policy = test::policy_of_tables(spec);
  ASSERT_NE(policy, nullptr);
  test::TableDriver driver(*policy, {}, mass);
  NaiveCascade naive = start;
  TokenIndex first = 0;
  for (const PassShape& shape : schedule) {
    driver.pass(shape.rows, shape.prompt, shape.prompt_left);
    if (::testing::Test::HasFatalFailure()) return;
    naive.pass(first, shape, [&](TokenIndex query, TokenIndex key) { return mass(0, query, key); });
    first += shape.rows;
    ASSERT_EQ(driver.held(), naive.kept) << "after token " << first - 1;
    ASSERT_TRUE(std::is_sorted(naive.kept.begin(), naive.kept.end()));
    for (int run = 0; run < start.n; ++run) ASSERT_EQ(driver.run(run), naive.run(run)) << "run " << run;
  }
  replaced += naive.replaced;
}

TEST(Cascade, KeepsWhatTheDefinitionKeeps) {
  const NaiveCascade cases[] = {
      {},
      {.sinks = 0},
      {.size = 30, .n = 5, .sinks = 4, .accept = 3},
      {.size = 20, .n = 1, .sinks = 3},
      {.size = 4, .n = 4, .sinks = 1},
      {.size = 24, .n = 3, .sinks = 0, .accept = 1},
      {.size = 24, .n = 3, .gamma = 0},
      {.size = 24, .n = 3, .gamma = 0.5},
      {.size = 24, .n = 2, .sinks = 30},
      {.size = 32, .n = 4, .select = false},
      {.size = 16, .n = 16, .accept = 2},
  };
  int replaced = 0;
  for (const NaiveCascade& c : cases)
    for (const auto& schedule : test::schedules())
      for (const auto& mass : {test::random_mass(1), test::skewed_mass(2), test::random_mass(3, 2)}) {
        compare(c, mass, schedule, replaced);
        if (::testing::Test::HasFatalFailure()) return;
      }
  EXPECT_GT(replaced, 1000);
}

TEST(Cascade, ALongStreamReachesTheLastSubCache) {
  int replaced = 0;
  compare({.size = 32, .n = 4, .sinks = 4}, test::skewed_mass(9), test::one_at_a_time(2000), replaced);
  EXPECT_GT(replaced, 100);
  // Without selection the tokens of sub-cache i are accept^i apart; the whole reaches back about 8 * (1 + 2 + 4 + 8).
  const auto policy = test::policy_of_tables("cascade:size=32,n=4,sinks=0,select=off");
  test::TableDriver driver(*policy, {}, test::random_mass(1));
  driver.generate(2000);
  const auto last = driver.run(3);
  ASSERT_EQ(last.size(), 8u);
  for (std::size_t i = 1; i < last.size(); ++i) EXPECT_EQ(last[i] - last[i - 1], 8);
  EXPECT_NEAR(static_cast<double>(1999 - last[0]), 8 * (1 + 2 + 4 + 8), 16);
  EXPECT_GT(driver.moves(), 1000);
}

TEST(Cascade, MassesOfHeadsAreReducedAsAsked) {
  EXPECT_EQ(reductions_of(*test::policy_of_tables("cascade")), std::vector{MassReduction::kMean});
  EXPECT_EQ(reductions_of(*test::policy_of_tables("cascade:reduce=sum")), std::vector{MassReduction::kSum});
  EXPECT_EQ(reductions_of(*test::policy_of_tables("cascade:reduce=max")), std::vector{MassReduction::kMax});
  EXPECT_EQ(reductions_of(*test::policy_of_tables("cascade:reduce=median")), std::vector{MassReduction::kMedian});
}

TEST(Cascade, BehavesAsEveryScoredPolicy) {
  for (const char* spec : {"cascade:size=16,n=4,sinks=2", "cascade:size=30,n=3,sinks=0,accept=3,gamma=0.9",
                           "cascade:size=20,n=5,select=off,heads=independent"})
    test::check_scored_policy(spec);
}

TEST(Cascade, IsDescribedByItsSpec) {
  const auto policy = test::policy_of_tables("cascade");
  EXPECT_EQ(policy->traits().spec, "cascade:size=2048,n=4,sinks=4");
  EXPECT_EQ(policy->traits().positions, PositionMode::kCompact);
  EXPECT_EQ(policy->traits().scope, PolicyScope::kLayer);
  EXPECT_EQ(policy->bound(), 2053);
  EXPECT_EQ(policy->traits().run_capacities, (std::vector<std::int64_t>{512, 512, 512}));
  EXPECT_TRUE(test::policy_of_tables("cascade:n=1")->traits().run_capacities.empty());
  EXPECT_EQ(
      test::policy_of_tables("cascade:gamma=0.50,accept=3,reduce=max,select=off,heads=independent")->traits().spec,
      "cascade:size=2048,n=4,sinks=4,accept=3,gamma=0.5,reduce=max,select=off,heads=independent");
}

}  // namespace
}  // namespace kvasir
