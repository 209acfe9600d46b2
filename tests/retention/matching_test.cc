// `matching` against its definition (docs/policies/matching.md), computed in long double from all keys, values and
// queries, with the normal equations of the fit in place of its residuals.
#include <fmt/core.h>

#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "retention/expect_refused.h"
#include "retention/scored.h"
#include "retention/scored_checks.h"
#include "retention/table_driver.h"

namespace kvasir::matching {
namespace {

constexpr int kDims = 4;
constexpr TokenIndex kSinks = 4;
using Real = long double;
using Vector = std::array<Real, kDims>;

const TableLayout kPlain{.layers = 2, .per_layer = 2, .heads = 2, .head_dim = kDims};
const TableLayout kTurned{.layers = 2,
                          .per_layer = 2,
                          .heads = 2,
                          .head_dim = kDims,
                          .turns = std::make_shared<const std::vector<QueryTurn>>(
                              std::vector<QueryTurn>{{{0.9F, 0.013F}, 1, 0.5F}, {{0.4F}, 1.5F, 0.5F}})};

Real dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), Real{0});
}

template <class Element>
Vector vector_of(Element&& element) {
  Vector all;
  for (int i = 0; i < kDims; ++i) all[static_cast<std::size_t>(i)] = element(i);
  return all;
}
Vector key_of(int table, TokenIndex token) {
  return vector_of([&](int i) { return test::key_element(table, token, i); });
}
Vector value_of(int table, TokenIndex token) {
  return vector_of([&](int i) { return test::value_element(table, token, i); });
}

struct Options {
  std::int64_t budget = 0;
  std::int64_t recent = 0;
  std::int64_t every = 0;
  bool blocks = false;
  bool output = true;  // fit=output; otherwise fit=mass
  bool biases = true;  // otherwise fit=off
  int queries = 8;
  std::int64_t future = 512;
};

class Definition {
 public:
  Definition(int table, const TableLayout& layout, const Options& options)
      : table_(table), layout_(layout), options_(options) {}

  const std::vector<TokenIndex>& kept() const { return kept_; }
  const std::vector<Real>& biases() const { return biases_; }

  void pass(TokenIndex first, int rows, bool prompt, std::int64_t prompt_left) {
    for (TokenIndex token = first; token < first + rows; ++token) kept_.push_back(token), biases_.push_back(0);
    const std::int64_t excess = std::ssize(kept_) - options_.budget;
    if (prompt ? (options_.blocks || prompt_left == 0) && excess > 0 : excess >= options_.every) prune(excess);
  }

 private:
  struct Moments {
    Vector mean{};
    std::array<Vector, kDims> spread{};
  };
  Moments moments(int head, TokenIndex seen) const {
    const auto count = static_cast<Real>(seen - kSinks);
    const auto query = [&](TokenIndex token, std::size_t i) {
      return Real{test::query_element(table_, head, token, static_cast<int>(i))};
    };
    Moments made;
    for (TokenIndex token = kSinks; token < seen; ++token)
      for (std::size_t i = 0; i < kDims; ++i) made.mean[i] += query(token, i) / count;
    for (TokenIndex token = kSinks; token < seen; ++token)
      for (std::size_t i = 0; i < kDims; ++i)
        for (std::size_t j = 0; j < kDims; ++j)
          made.spread[i][j] += (query(token, i) - made.mean[i]) * (query(token, j) - made.mean[j]) / count;
    return made;
  }

  // The queries that the fit refers to, as they meet the stored keys, scaled.
  std::vector<Vector> references() const {
    const TokenIndex seen = kept_.back() + 1;
    SplitMix draws = draws_of_table(1, table_);
    std::vector<Vector> all;
    for (int head = 0; head < layout_.heads; ++head) {
      const Moments of = moments(head, seen);
      std::array<Vector, kDims> root{};
      for (std::size_t i = 0; i < kDims; ++i)  // row by row, of the triangle whose square is the spread
        for (std::size_t j = 0; j <= i; ++j) {
          Real rest = of.spread[i][j];
          for (std::size_t k = 0; k < j; ++k) rest -= root[i][k] * root[j][k];
          root[i][j] = i == j ? std::sqrt(rest) : rest / root[j][j];
        }
      for (int q = 0; q < options_.queries; ++q) {
        Vector normal;
        for (Real& x : normal) {
          const Real length = std::sqrt(-2 * std::log(1 - Real{draws.unit()}));
          x = length * std::cos(2 * std::numbers::pi_v<Real> * Real{draws.unit()});
        }
        Vector query = of.mean;
        for (std::size_t i = 0; i < kDims; ++i) query[i] += dot(root[i], normal);
        all.push_back(turned(query, {seen + (2 * q + 1) * options_.future / (2 * options_.queries)}));
      }
    }
    return all;
  }

  // Returns a query turned by the mean of the turns to these positions, scaled.
  Vector turned(Vector query, const std::vector<TokenIndex>& positions) const {
    Real scale = 0.5L;
    if (layout_.turns != nullptr) {
      const QueryTurn& turn = (*layout_.turns)[static_cast<std::size_t>(table_ / layout_.per_layer)];
      scale = turn.scale;
      for (std::size_t p = 0; p < turn.frequencies.size(); ++p) {
        Real cosine = 0, sine = 0;
        for (const TokenIndex position : positions) {
          cosine += std::cos(static_cast<Real>(position) * turn.frequencies[p]) / std::ssize(positions);
          sine += std::sin(static_cast<Real>(position) * turn.frequencies[p]) / std::ssize(positions);
        }
        const Real x = query[2 * p], y = query[2 * p + 1];
        query[2 * p] = (cosine * x - sine * y) * turn.magnitude;
        query[2 * p + 1] = (sine * x + cosine * y) * turn.magnitude;
      }
    }
    for (Real& x : query) x *= scale;
    return query;
  }

  // Returns what queries of the next positions may give each token behind the sinks, times the norm of its value.
  std::vector<Real> expectations() const {
    const TokenIndex seen = kept_.back() + 1;
    std::vector<TokenIndex> positions(static_cast<std::size_t>(options_.future));
    std::iota(positions.begin(), positions.end(), seen);
    std::vector<Real> scores(kept_.size());
    for (int head = 0; head < layout_.heads; ++head) {
      const Moments of = moments(head, seen);
      const Vector mean = turned(of.mean, positions);
      std::array<Vector, kDims> rows{}, spread{};  // R S R^T, scaled twice
      for (std::size_t i = 0; i < kDims; ++i) rows[i] = turned(of.spread[i], positions);
      for (std::size_t j = 0; j < kDims; ++j) {
        Vector column;
        for (std::size_t i = 0; i < kDims; ++i) column[i] = rows[i][j];
        column = turned(column, positions);
        for (std::size_t i = 0; i < kDims; ++i) spread[i][j] = column[i];
      }
      std::vector<Real> weights(kept_.size());
      Real sum = 0;
      for (std::size_t j = kSinks; j < kept_.size(); ++j) {
        const Vector key = key_of(table_, kept_[j]);
        Real square = 0;
        for (std::size_t i = 0; i < kDims; ++i) square += key[i] * dot(spread[i], key);
        sum += weights[j] = std::exp(dot(mean, key) + square / 2 + biases_[j]);
      }
      for (std::size_t j = kSinks; j < kept_.size(); ++j) {
        const Vector value = value_of(table_, kept_[j]);
        scores[j] += weights[j] / sum / layout_.heads * std::sqrt(dot(value, value));
      }
    }
    return scores;
  }

  void prune(std::int64_t excess) {
    const std::size_t held = kept_.size();
    std::vector<std::vector<Real>> weights;  // [reference][token]
    for (const Vector& query : references()) {
      std::vector<Real>& own = weights.emplace_back();
      for (std::size_t j = 0; j < held; ++j) own.push_back(std::exp(dot(query, key_of(table_, kept_[j])) + biases_[j]));
      const Real sum = std::accumulate(own.begin(), own.end(), Real{0});
      for (Real& weight : own) weight /= sum;
    }
    const std::vector<Real> scores = expectations();
    std::vector<std::size_t> order(held);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t j) { return scores[j]; });
    std::vector<bool> gone(held);
    for (const std::size_t j : order) {
      const bool fixed = std::cmp_less(j, kSinks) || std::cmp_greater_equal(j, std::ssize(kept_) - options_.recent);
      if (excess > 0 && !fixed) gone[j] = true, --excess;
    }
    std::vector<std::size_t> stay;
    for (std::size_t j = 0; j < held; ++j)
      if (!gone[j]) stay.push_back(j);
    if (options_.biases) fit(weights, stay);
    std::vector<TokenIndex> kept;
    std::vector<Real> biases;
    for (const std::size_t j : stay) kept.push_back(kept_[j]), biases.push_back(biases_[j]);
    kept_ = kept;
    biases_ = biases;
  }

  void fit(const std::vector<std::vector<Real>>& weights, const std::vector<std::size_t>& stay) {
    std::vector<Vector> outputs;
    Real square = 0;
    for (const auto& own : weights) {
      Vector output{};
      for (std::size_t j = 0; j < kept_.size(); ++j)
        for (std::size_t i = 0; i < kDims; ++i) output[i] += own[j] * value_of(table_, kept_[j])[i];
      outputs.push_back(output);
      square += dot(output, output) / static_cast<Real>(weights.size());
    }
    const Real lambda = options_.output ? 4 / square : 0;
    const auto value = [&](std::size_t j) { return value_of(table_, kept_[stay[j]]); };
    std::vector<std::vector<Real>> products(stay.size(), std::vector<Real>(stay.size()));
    std::vector<Real> targets(stay.size()), factors(stay.size(), 1);
    for (std::size_t j = 0; j < stay.size(); ++j)
      for (std::size_t r = 0; r < weights.size(); ++r) {
        targets[j] += weights[r][stay[j]] * (1 + lambda * dot(outputs[r], value(j)));
        for (std::size_t k = 0; k < stay.size(); ++k)
          products[j][k] += weights[r][stay[j]] * weights[r][stay[k]] * (1 + lambda * dot(value(j), value(k)));
      }
    Real mean = 0;
    for (std::size_t j = 0; j < stay.size(); ++j) mean += products[j][j] / static_cast<Real>(stay.size());
    for (int sweep = 0; sweep < 4; ++sweep)
      for (std::size_t j = 0; j < stay.size(); ++j) {
        Real gradient = targets[j];
        for (std::size_t k = 0; k < stay.size(); ++k) gradient -= products[j][k] * factors[k];
        const Real penalty = products[j][j] + 0.01L * mean;
        const Real step = (gradient + penalty * (1 - factors[j])) / (products[j][j] + penalty);
        factors[j] = std::clamp<Real>(factors[j] + step, 0.125L, 8);
      }
    for (std::size_t j = 0; j < stay.size(); ++j)
      biases_[stay[j]] = std::clamp<Real>(biases_[stay[j]] + std::log(factors[j]), -8, 8);
  }

  int table_;
  TableLayout layout_;
  Options options_;
  std::vector<TokenIndex> kept_;
  std::vector<Real> biases_;
};

// Compares tokens and biases behind every chunk of a prompt, an answer, and another prompt and answer.
void compare(const std::string& spec, const Options& options, const TableLayout& layout) {
  SCOPED_TRACE(spec);
  const auto policy = test::policy_of_tables(spec, layout);
  ASSERT_NE(policy, nullptr);
  test::TableDriver driver(*policy, layout, test::random_mass(1));
  std::vector<Definition> definitions;
  for (int t = 0; t < layout.tables(); ++t) definitions.emplace_back(t, layout, options);
  bool biased = false;
  const auto pass = [&](int rows, bool prompt, std::int64_t left) {
    const TokenIndex first = driver.next_id();
    driver.pass(rows, prompt, left);
    for (int t = 0; t < layout.tables(); ++t) {
      Definition& definition = definitions[static_cast<std::size_t>(t)];
      definition.pass(first, rows, prompt, left);
      ASSERT_EQ(driver.held(t), definition.kept()) << "table " << t << " behind " << driver.next_id();
      std::vector<float> biases(definition.kept().size());
      const WeighsSlots* weighs = policy->as<WeighsSlots>();
      ASSERT_EQ(weighs != nullptr, options.biases);
      const bool any = weighs != nullptr && weighs->biases(t, 0, biases);
      biased = biased || any;
      for (std::size_t j = 0; j < biases.size(); ++j)
        ASSERT_NEAR(biases[j], static_cast<double>(definition.biases()[j]), 2e-4) << "table " << t << ", place " << j;
    }
  };
  for (int round = 0; round < 2; ++round) {
    for (int left = 60; left > 0 && !::testing::Test::HasFatalFailure(); left -= 20) pass(20, true, left - 20);
    for (int i = 0; i < 30 && !::testing::Test::HasFatalFailure(); ++i) pass(1, false, 0);
  }
  EXPECT_EQ(biased, options.biases);
}

TEST(Matching, DecidesAsItsDefinitionSays) {
  compare("matching:budget=20,recent=3,every=9", {.budget = 20, .recent = 3, .every = 9}, kPlain);
  compare("matching:budget=20,recent=3,every=9", {.budget = 20, .recent = 3, .every = 9}, kTurned);
  compare("matching:budget=24,recent=0,every=4,prompt=blocks,queries=3,future=100",
          {.budget = 24, .recent = 0, .every = 4, .blocks = true, .queries = 3, .future = 100}, kTurned);
  compare("matching:budget=20,recent=3,every=5,fit=mass", {.budget = 20, .recent = 3, .every = 5, .output = false},
          kPlain);
  compare("matching:budget=20,recent=3,every=5,fit=off", {.budget = 20, .recent = 3, .every = 5, .biases = false},
          kTurned);
}

// Without a fit the dropped tokens' share of the mass goes to newer tokens; with one most of it stays where it was.
TEST(Matching, KeepsTheMassOfWhatItDropped) {
  const auto policy = test::policy_of_tables("matching:budget=20,recent=3,fit=mass", kPlain);
  test::TableDriver driver(*policy, kPlain, test::random_mass(1));
  driver.prompt(60, 20);
  for (int t = 0; t < kPlain.tables(); ++t) {
    std::vector<float> biases(20);
    ASSERT_TRUE(policy->as<WeighsSlots>()->biases(t, 0, biases));
    Real kept = 0, weighed = 0, all = 0;
    for (TokenIndex token = 0; token < 60; ++token) all += std::exp(dot(key_of(t, token), Vector{}));
    const std::vector<TokenIndex> held = driver.held(t);
    for (std::size_t j = 0; j < held.size(); ++j) {
      const Real weight = std::exp(dot(key_of(t, held[j]), Vector{}));
      kept += weight / all;
      weighed += weight * std::exp(Real{biases[j]}) / all;
    }
    EXPECT_LT(kept, 0.4) << t;
    EXPECT_GT(weighed, 0.6) << t;
    EXPECT_LT(weighed, 1.1) << t;
  }
}

// Tokens of one table in two frames: rotations of the second count from its origin.
class FramedKv final : public HeldKv {
 public:
  FramedKv(int table, std::int64_t tokens, TokenIndex second) : table_(table), tokens_(tokens), second_(second) {}
  std::int64_t tokens() const override { return tokens_; }
  void visit(Sides, const Visit& visit) override {
    for (const auto& [begin, end] : {std::pair{TokenIndex{0}, second_}, std::pair{second_, tokens_}}) {
      if (begin == end) continue;
      std::vector<float> keys, values;
      std::vector<std::int64_t> rotations;
      for (TokenIndex token = begin; token < end; ++token) {
        rotations.push_back(token - begin);
        const QueryTurn& turn = (*kTurned.turns)[static_cast<std::size_t>(table_ / kTurned.per_layer)];
        Vector key = key_of(table_, token);
        for (std::size_t p = 0; p < turn.frequencies.size(); ++p) {
          const Real back = -static_cast<Real>(begin) * turn.frequencies[p], x = key[2 * p], y = key[2 * p + 1];
          key[2 * p] = std::cos(back) * x - std::sin(back) * y;
          key[2 * p + 1] = std::sin(back) * x + std::cos(back) * y;
        }
        for (const Real x : key) keys.push_back(static_cast<float>(x));
        for (const Real x : value_of(table_, token)) values.push_back(static_cast<float>(x));
      }
      visit({begin, begin, {1, static_cast<int>(end - begin), kDims, keys, values, rotations}});
    }
  }
  void projected_norms(std::span<double>) override { ADD_FAILURE() << "nobody asked"; }

 private:
  int table_;
  std::int64_t tokens_;
  TokenIndex second_;
};

// Shows a prompt of 60 tokens to a policy, whose queries are all alike with `alike`; returns tokens and biases of a
// table.
std::pair<std::vector<IndexRange>, std::vector<float>> decide(int table, TokenIndex second_frame, bool alike = false) {
  const auto policy = test::policy_of_tables("matching:budget=20,recent=3", kTurned);
  const PolicyChunk chunk{0, 60, true, 0};
  for (int t = 0; t < kTurned.tables(); ++t) {
    QueryAccumulator sums;
    sums.begin(kTurned.heads, kDims, 60 - kSinks);
    for (TokenIndex token = kSinks; token < 60; ++token)
      for (int head = 0; head < kTurned.heads; ++head) {
        std::vector<float> query;
        for (int i = 0; i < kDims; ++i) query.push_back(test::query_element(t, head, alike ? 7 : token, i));
        sums.add(head, query);
      }
    policy->as<SumsQueries>()->read_queries(chunk, t, sums.of(0, kTurned.heads));
    FramedKv kv(t, 60, second_frame);
    policy->as<ReadsHeldKv>()->read_held(chunk, t, kv);
    KeepPlan plan;
    policy->end_chunk(chunk, t, plan);
  }
  std::pair<std::vector<IndexRange>, std::vector<float>> made{{}, std::vector<float>(20)};
  policy->retained(table, 0, made.first);
  EXPECT_TRUE(policy->as<WeighsSlots>()->biases(table, 0, made.second));
  return made;
}

TEST(Matching, FramesDoNotMatter) {
  for (int table = 0; table < kTurned.tables(); ++table) {
    const auto one = decide(table, 60), two = decide(table, 23);
    EXPECT_EQ(one.first, two.first) << table;
    for (std::size_t j = 0; j < one.second.size(); ++j) EXPECT_NEAR(one.second[j], two.second[j], 1e-4) << table;
  }
}

// Queries that are all alike have no variance but rounding.
TEST(Matching, QueriesWithoutVarianceAreNumbers) {
  for (int table = 0; table < kTurned.tables(); ++table) {
    double most = 0;
    for (const float bias : decide(table, 60, true).second) {
      EXPECT_TRUE(std::isfinite(bias));
      most = std::max(most, std::abs(double{bias}));
    }
    EXPECT_GT(most, 0.1);
  }
}

// Dropped tokens that are read again need nothing to make up for them.
TEST(Matching, HasNoBiasesWithDemotion) {
  const auto policy = test::policy_of_tables("matching:budget=20,recent=3,pos=original@demote=q4", kPlain);
  ASSERT_NE(policy, nullptr);
  test::TableDriver driver(*policy, kPlain, test::random_mass(1));
  driver.prompt(60, 20);
  EXPECT_EQ(std::ssize(driver.held()), 20);
  std::vector<float> biases(20);
  EXPECT_FALSE(policy->as<WeighsSlots>()->biases(0, 0, biases));
}

TEST(Matching, IsAPolicyLikeTheOthers) {
  for (const char* spec : {"matching:budget=20,recent=4,every=5", "matching:budget=20,recent=4,prompt=blocks,every=3",
                           "matching:budget=30%,recent=2,fit=mass,queries=2,every=6",
                           "matching:budget=25,recent=0,fit=off,prompt=blocks,every=0",
                           "matching:budget=30,recent=4+h2o:budget=24,recent=5"})
    test::check_scored_policy(spec);
}

TEST(Matching, RefusesWhatCannotBe) {
  test::expect_refused("matching:fit=all", {"all", "output, mass, off"});
  test::expect_refused("matching:queries=0", {"queries=0", "1 to 256"});
  test::expect_refused("matching:budget=20", {"sinks=4", "recent=32", "budget=20"});
  test::expect_refused("matching:prompt=blocks+lethe", {"prompt=blocks", "omit"});
}

}  // namespace
}  // namespace kvasir::matching
