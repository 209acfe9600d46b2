// `lethe` against its definition: scores sorted in full, sets made anew. And Hoyer sparsity.
#include <fmt/core.h>

#include <cmath>
#include <set>

#include "retention/hoyer.h"
#include "retention/scored_checks.h"

namespace kvasir {
namespace {

using test::PassShape;
using test::TableMass;

struct Events {
  int found = 0;
  int doubled = 0;
  int capped = 0;
  int capped_though_found = 0;
};

struct NaiveLethe {
  double tau = 400;
  double recent = 0.3;
  std::int64_t sinks = 4;
  std::int64_t segments = 10;
  double gamma = 0.98;
  std::int64_t start = 512;
  std::int64_t max = 0;  // 0: none
  Events* events = nullptr;

  std::int64_t threshold = 0;
  TokenIndex prompt_end = -1;
  std::vector<TokenIndex> kept;
  std::map<TokenIndex, double> score;

  std::int64_t capped(std::int64_t value) const { return max > 0 ? std::min(value, max) : value; }

  void pass(TokenIndex first, const PassShape& shape, const TableMass& mass) {
    if (threshold == 0) threshold = capped(start);
    const TokenIndex end = shape.prompt ? first + shape.rows + shape.prompt_left : -1;
    if (end < 0 || end != prompt_end)
      for (const TokenIndex id : kept) score[id] *= gamma;
    prompt_end = end;
    std::vector<TokenIndex> seen = kept;
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      seen.push_back(id);
      for (const TokenIndex key : seen) score[key] += mass(id, key);
    }
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      kept.push_back(id);
      if (std::ssize(kept) > threshold) prune();
    }
  }

  void prune() {
    const std::int64_t K = std::ssize(kept);
    std::vector<TokenIndex> best = kept;
    std::sort(best.begin(), best.end(),
              [&](TokenIndex a, TokenIndex b) { return score[a] != score[b] ? score[a] > score[b] : a > b; });
    const auto r = static_cast<std::int64_t>(std::floor(recent * static_cast<double>(K)));
    const std::int64_t safe_sinks = std::min(sinks, K);
    std::set<TokenIndex> safe(kept.begin(), kept.begin() + safe_sinks);
    safe.insert(kept.end() - r, kept.end());
    for (std::int64_t d = 1; d < segments; ++d) {
      const std::int64_t c = K * d / segments;
      const double v0 = score[best[0]], vc = score[best[static_cast<std::size_t>(c)]];
      if (vc != 0 && v0 / vc < tau) continue;
      std::set<TokenIndex> keep = safe;
      keep.insert(best.begin(), best.begin() + c);
      if (max > 0 && std::ssize(keep) >= max) {
        ++events->capped_though_found;
        break;
      }
      kept.assign(keep.begin(), keep.end());
      threshold = capped(std::max(threshold, c + r));
      ++events->found;
      return;
    }
    if (max > 0 && K >= max) {
      std::set<TokenIndex> keep = safe;
      for (const TokenIndex id : best)
        if (std::ssize(keep) < max / 2) keep.insert(id);
      kept.assign(keep.begin(), keep.end());
      threshold = max;
      ++events->capped;
      return;
    }
    threshold = capped(2 * threshold);
    ++events->doubled;
  }
};

std::string spec_of(const NaiveLethe& c) {
  std::string spec = fmt::format("lethe:tau={},recent={},sinks={},segments={},gamma={},start={}", c.tau, c.recent,
                                 c.sinks, c.segments, c.gamma, c.start);
  if (c.max > 0) spec += fmt::format(",max={}", c.max);
  return spec;
}

TEST(Lethe, KeepsWhatTheDefinitionKeeps) {
  Events events;
  const NaiveLethe cases[] = {
      {.tau = 8, .sinks = 2, .gamma = 0.9, .start = 12},
      {.tau = 1.5, .start = 10},
      {.tau = 30, .recent = 0.1, .sinks = 0, .segments = 4, .start = 20},
      {.tau = 3, .recent = 0, .sinks = 1, .segments = 20, .gamma = 0.5, .start = 16},
      {.tau = 1e9, .start = 8},
      {.tau = 1e9, .start = 8, .max = 40},
      {.tau = 40, .recent = 0.5, .sinks = 4, .gamma = 1, .start = 15, .max = 30},
      {.tau = 2, .recent = 0.25, .sinks = 3, .gamma = 0.98, .start = 100, .max = 24},
      {.tau = 1.2, .recent = 0.9, .sinks = 0, .gamma = 0, .start = 5, .max = 20},
      {.tau = 5, .recent = 1, .sinks = 4, .start = 20},
      {.tau = 6, .recent = 0.3, .sinks = 0, .segments = 2, .start = 1, .max = 12},
      {.tau = 6, .recent = 0.2, .sinks = 100, .start = 30},
  };
  for (NaiveLethe c : cases) {
    c.events = &events;
    for (const auto& schedule : test::schedules())
      for (const auto& mass : {test::random_mass(1), test::skewed_mass(2), test::random_mass(3, 3)})
        test::compare_with(spec_of(c), mass, schedule, [&](int) { return c; });
    test::compare_with(spec_of(c) + ",heads=independent", test::skewed_mass(4), test::schedules()[2],
                       [&](int) { return c; }, {.layers = 2, .per_layer = 3, .heads = 2});
  }
  EXPECT_GT(events.found, 100);
  EXPECT_GT(events.doubled, 20);
  EXPECT_GT(events.capped, 20);
  EXPECT_GT(events.capped_though_found, 5);
}

// A larger tau prunes less: the reading of Eq. 4 that agrees with the paper's text.
TEST(Lethe, ALargerTauPrunesLess) {
  std::size_t kept_before = 0;
  for (const char* tau : {"1.01", "5", "50", "1e9"}) {
    const auto policy = test::policy_of_tables(fmt::format("lethe:tau={},start=64", tau));
    test::TableDriver driver(*policy, {}, test::skewed_mass(11));
    std::size_t sum = 0;
    for (int i = 0; i < 600; ++i) {
      driver.pass(1);
      sum += driver.held().size();
    }
    EXPECT_GT(sum, kept_before) << tau;
    kept_before = sum;
  }
}

TEST(Lethe, BehavesAsEveryScoredPolicy) {
  for (const char* spec : {"lethe:tau=8,start=12,sinks=2", "lethe:tau=20,start=12,max=30",
                           "lethe:tau=1e9,max=16,start=4", "lethe:tau=4,start=20,max=50,heads=independent"})
    test::check_scored_policy(spec);
}

TEST(Lethe, IsDescribedByItsSpec) {
  const auto policy = test::policy_of_tables("lethe");
  EXPECT_EQ(policy->traits().spec, "lethe:tau=400,start=512");
  EXPECT_EQ(reductions_of(*policy), std::vector{MassReduction::kSum});
  EXPECT_EQ(policy->traits().scope, PolicyScope::kLayer);
  EXPECT_EQ(policy->bound(), std::nullopt);
  EXPECT_EQ(test::policy_of_tables("lethe:max=900")->bound(), 901);
  EXPECT_EQ(test::policy_of_tables("lethe:max=100")->bound(), 101);
}

TEST(Hoyer, IsZeroForEqualAndOneForASingleElement) {
  EXPECT_EQ(hoyer_sparsity({}), 0);
  EXPECT_EQ(hoyer_sparsity(std::vector<double>{3}), 0);
  EXPECT_EQ(hoyer_sparsity(std::vector<double>{0, 0, 0}), 0);
  EXPECT_NEAR(hoyer_sparsity(std::vector<double>(50, 0.02)), 0, 1e-12);
  EXPECT_NEAR(hoyer_sparsity(std::vector<double>{0, 0, 0.7, 0}), 1, 1e-12);
  // (sqrt 4 - 6 / sqrt 14) / (sqrt 4 - 1)
  EXPECT_NEAR(hoyer_sparsity(std::vector<double>{1, 2, 3, 0}), 2 - 6 / std::sqrt(14.0), 1e-12);
  EXPECT_NEAR(hoyer_sparsity(std::vector<double>{10, 20, 30, 0}), 2 - 6 / std::sqrt(14.0), 1e-12);
}

}  // namespace
}  // namespace kvasir
