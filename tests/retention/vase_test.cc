// `vase` against its definition, and its draws against their probabilities.
#include <fmt/core.h>

#include <cmath>
#include <numeric>

#include "retention/expect_refused.h"
#include "retention/scored_checks.h"

namespace kvasir {
namespace {

using test::PassShape;
using test::TableMass;

constexpr int kDims = 4;
const TableLayout kLayout{.layers = 2, .per_layer = 2, .heads = 2, .head_dim = kDims};

double range_of(int table, TokenIndex token) {
  double least = INFINITY, most = -INFINITY;
  for (int i = 0; i < kDims; ++i) {
    least = std::min(least, double{test::value_element(table, token, i)});
    most = std::max(most, double{test::value_element(table, token, i)});
  }
  return most - least;
}

// With draw=off: of equal ranks the older token goes.
struct Naive {
  int table = 0;
  std::size_t budget = 0, recent = 0, sinks = 0, wide = 0, every = 0;
  int kernel = 1;
  bool blocks = false;
  std::vector<TokenIndex> kept;
  std::map<TokenIndex, double> mass;  // of the queries since the last prune; of a prompt, of its last ones

  void pass(TokenIndex first, const PassShape& shape, const TableMass& source) {
    std::vector<TokenIndex> seen = kept;
    for (TokenIndex id = first; id < first + shape.rows; ++id) {
      seen.push_back(id);
      const std::int64_t left = (blocks ? 0 : shape.prompt_left) + first + shape.rows - 1 - id;
      if (shape.prompt && left >= static_cast<std::int64_t>(every)) continue;
      if (shape.prompt && prompt_end != id + left) mass.clear(), prompt_end = id + left;
      for (const TokenIndex key : seen) mass[key] += source(id, key);
    }
    kept = seen;
    const bool due = shape.prompt ? (blocks || shape.prompt_left == 0) && kept.size() > budget
                                  : kept.size() >= budget + every;
    if (!due) return;
    const std::size_t last = kept.size() - recent;
    std::vector<double> ranks(last);
    for (std::size_t i = 0; i < last; ++i) {
      for (std::int64_t k = -(kernel / 2); k <= kernel / 2; ++k) {
        const std::int64_t at = static_cast<std::int64_t>(i) + k;
        if (at >= 0 && at < static_cast<std::int64_t>(last)) ranks[i] += mass[kept[static_cast<std::size_t>(at)]];
      }
    }
    std::vector<std::size_t> order(last);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::vector<std::size_t> widest(order.begin() + static_cast<std::ptrdiff_t>(sinks), order.end());
    std::ranges::sort(widest, [&](std::size_t a, std::size_t b) {
      const double x = range_of(table, kept[a]), y = range_of(table, kept[b]);
      return x != y ? x > y : a > b;
    });
    std::vector<bool> stays(last);
    for (std::size_t i = 0; i < sinks; ++i) stays[i] = true;
    for (std::size_t i = 0; sinks + i < wide && i < widest.size(); ++i) stays[widest[i]] = true;
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return ranks[i]; });
    std::set<TokenIndex> gone;
    for (const std::size_t i : order)
      if (!stays[i] && gone.size() < kept.size() - budget) gone.insert(kept[i]);
    std::erase_if(kept, [&](TokenIndex token) { return gone.contains(token); });
    mass.clear();
  }
  TokenIndex prompt_end = -1;
};

TEST(Vase, KeepsWhatItsDefinitionSays) {
  for (const auto& schedule : test::schedules()) {
    const auto compare = [&](const std::string& spec, const Naive& naive) {
      test::compare_with(
          spec, test::random_mass(1), schedule,
          [&](int table) {
            Naive one = naive;
            one.table = table;
            return one;
          },
          kLayout);
    };
    compare("vase:budget=24,recent=6,sinks=2,wide=8,draw=off,kernel=1,every=5",
            {.budget = 24, .recent = 6, .sinks = 2, .wide = 8, .every = 5, .kernel = 1});
    compare("vase:budget=20,recent=4,sinks=0,wide=25%,draw=off,kernel=3,every=9",
            {.budget = 20, .recent = 4, .sinks = 0, .wide = 5, .every = 9, .kernel = 3});
    compare("vase:budget=22,recent=5,sinks=1,wide=7,draw=off,kernel=3,every=6,prompt=blocks",
            {.budget = 22, .recent = 5, .sinks = 1, .wide = 7, .every = 6, .kernel = 3, .blocks = true});
  }
}

// One token of many is drawn in proportion to its mass.
TEST(Vase, DrawsInProportionToAttention) {
  constexpr int kTokens = 12, kSeeds = 4000;
  const test::MassSource mass = [](int, TokenIndex, TokenIndex key) { return key < 10 ? 1.0 + double(key) : 0; };
  std::vector<int> drawn(kTokens);
  for (int seed = 0; seed < kSeeds; ++seed) {
    const TableLayout one{.layers = 1, .per_layer = 1, .heads = 1, .head_dim = kDims};
    const auto policy = test::policy_of_tables(
        fmt::format("vase:budget=3,recent=2,sinks=0,wide=0,kernel=1,every=4,seed={}", seed), one);
    ASSERT_NE(policy, nullptr);
    test::TableDriver driver(*policy, one, mass);
    driver.prompt(kTokens, kTokens);
    ASSERT_EQ(driver.held().size(), 3u);
    ++drawn[static_cast<std::size_t>(driver.held().front())];
  }
  for (int token = 0; token < 10; ++token) {
    // The last four queries are observed, of which three see the last token that may go.
    const double share = (token == 9 ? 3 : 4) * (1.0 + token) / (4 * 45 + 3 * 10);
    EXPECT_NEAR(drawn[static_cast<std::size_t>(token)] / double(kSeeds), share,
                4 * std::sqrt(share * (1 - share) / kSeeds))
        << token;
  }
}

TEST(Vase, IsAPolicyLikeTheOthers) {
  for (const char* spec : {"vase:budget=20,recent=4,every=5", "vase:budget=30%,recent=2,every=3,draw=off",
                           "vase:budget=24,recent=6,every=4,prompt=blocks",
                           "snapkv:budget=30,window=6+vase:budget=24,recent=4,every=3"})
    test::check_scored_policy(spec);
}

TEST(Vase, RefusesWhatCannotBe) {
  test::expect_refused("vase:every=0", {"every=0", "1 to 2^40"});
  test::expect_refused("vase:recent=0", {"recent=0", "1 to 2^40"});
  test::expect_refused("vase:kernel=4", {"kernel=4", "odd"});
  test::expect_refused("vase:prompt=blocks+h2o", {"composition", "prompt=blocks"});
  test::expect_refused("vase:budget=10,sinks=6,recent=6", {"sinks=6", "recent=6", "budget=10"});
}

}  // namespace
}  // namespace kvasir
