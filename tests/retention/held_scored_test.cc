// `keydiff` and `lagkv` against their definitions, computed in long double from all keys and values at once.
#include <cmath>
#include <numeric>

#include "retention/expect_refused.h"
#include "retention/scored_checks.h"

namespace kvasir {
namespace {

using test::key_element;
using test::PassShape;
using test::TableMass;
using test::value_element;

constexpr int kDims = 4;
const TableLayout kLayout{.layers = 2, .per_layer = 2, .heads = 2, .head_dim = kDims};
using Vector = std::array<long double, kDims>;
using Scores = std::vector<long double>;

Vector vector_of(int table, TokenIndex token, float (*element)(int, TokenIndex, int)) {
  Vector all;
  for (int i = 0; i < kDims; ++i) all[static_cast<std::size_t>(i)] = element(table, token, i);
  return all;
}

long double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0L);
}

// Keeps `sinks` first tokens, `recent` last ones, and the best of the others: at the end of a prompt, or of a chunk,
// and when `every` generated tokens are above the budget.
struct Naive {
  int table = 0;
  std::function<Scores(int table, const std::vector<TokenIndex>& held)> score;
  std::int64_t budget = 0;
  std::int64_t sinks = 0;
  std::int64_t recent = 0;
  std::int64_t every = 64;
  bool blocks = false;
  std::vector<TokenIndex> kept;

  void pass(TokenIndex first, const PassShape& shape, const TableMass&) {
    for (TokenIndex id = first; id < first + shape.rows; ++id) kept.push_back(id);
    const std::int64_t excess = std::ssize(kept) - budget;
    const bool due = shape.prompt ? (blocks || shape.prompt_left == 0) && excess > 0 : every > 0 && excess >= every;
    if (!due) return;
    const Scores scores = score(table, kept);
    std::vector<std::size_t> order(kept.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    // Of equal scores the older token goes.
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return scores[i]; });
    std::vector<bool> gone(kept.size());
    std::int64_t left = excess;
    for (const std::size_t i : order) {
      const bool stays = std::cmp_less(i, sinks) || std::cmp_greater_equal(i, std::ssize(kept) - recent);
      if (left > 0 && !stays) gone[i] = true, --left;
    }
    std::vector<TokenIndex> rest;
    for (std::size_t i = 0; i < kept.size(); ++i)
      if (!gone[i]) rest.push_back(kept[i]);
    kept = rest;
  }
};

Scores cosines(int table, const std::vector<TokenIndex>& held) {
  Vector mean{};
  for (const TokenIndex token : held) {
    const Vector key = vector_of(table, token, key_element);
    for (std::size_t i = 0; i < kDims; ++i) mean[i] += key[i] / std::sqrt(dot(key, key)) / std::ssize(held);
  }
  Scores scores;
  for (const TokenIndex token : held) {
    const Vector key = vector_of(table, token, key_element);
    scores.push_back(-dot(key, mean) / std::sqrt(dot(key, key) * dot(mean, mean)));
  }
  return scores;
}

Scores distances(int table, const std::vector<TokenIndex>& held, std::size_t span) {
  Scores scores;
  for (std::size_t begin = 0; begin < held.size(); begin += span) {
    const std::size_t end = std::min(begin + span, held.size());
    Vector mean{};
    for (std::size_t j = begin; j < end; ++j)
      for (std::size_t i = 0; i < kDims; ++i)
        mean[i] += vector_of(table, held[j], key_element)[i] / static_cast<long double>(end - begin);
    for (std::size_t j = begin; j < end; ++j) {
      Vector off = vector_of(table, held[j], key_element);
      for (std::size_t i = 0; i < kDims; ++i) off[i] -= mean[i];
      scores.push_back(std::sqrt(dot(off, off)));
    }
  }
  return scores;
}

Scores norms(int table, const std::vector<TokenIndex>& held) {
  Scores scores;
  for (const TokenIndex token : held) {
    const Vector key = vector_of(table, token, key_element);
    scores.push_back(-std::sqrt(dot(key, key)));
  }
  return scores;
}

// Deviations of a partition's tokens by the ranges of the next one, as a softmax over the partition.
Scores deviations(int table, const std::vector<TokenIndex>& held, std::size_t begin, std::size_t lag,
                  float (*element)(int, TokenIndex, int)) {
  Scores scores(lag);
  for (std::size_t j = 0; j < lag; ++j) {
    Vector scaled = vector_of(table, held[begin + j], element);
    for (std::size_t i = 0; i < kDims; ++i) {
      long double least = INFINITY, most = -INFINITY;
      for (std::size_t k = begin + lag; k < begin + 2 * lag; ++k) {
        least = std::min(least, vector_of(table, held[k], element)[i]);
        most = std::max(most, vector_of(table, held[k], element)[i]);
      }
      scaled[i] = (scaled[i] - least) / (most - least);
    }
    const long double mean = std::accumulate(scaled.begin(), scaled.end(), 0.0L) / kDims;
    for (const long double x : scaled) scores[j] += (x - mean) * (x - mean) / (kDims - 1);
    scores[j] = std::exp(std::sqrt(scores[j]));
  }
  const long double sum = std::accumulate(scores.begin(), scores.end(), 0.0L);
  for (long double& score : scores) score /= sum;
  return scores;
}

Scores lags(int table, const std::vector<TokenIndex>& held, std::size_t sinks, std::size_t lag, bool own) {
  Scores scores(held.size());
  std::iota(scores.begin(), scores.end(), 10.0L);  // the newest stay longest
  const std::size_t partitions = held.size() > sinks ? (held.size() - sinks) / lag : 0;
  for (std::size_t p = 0; p + 1 < partitions; ++p) {
    const Scores keys = deviations(table, held, sinks + p * lag, lag, key_element);
    const Scores values = deviations(table, held, sinks + p * lag, lag, value_element);
    for (std::size_t j = 0; j < lag; ++j) {
      std::size_t below = 0;
      for (std::size_t k = 0; k < lag; ++k) below += keys[k] + values[k] < keys[j] + values[j] ? 1 : 0;
      scores[sinks + p * lag + j] =
          own ? static_cast<long double>(below) / static_cast<long double>(lag) : (keys[j] + values[j]) / 2;
    }
  }
  return scores;
}

void compare(const std::string& spec, const Naive& naive) {
  for (const auto& schedule : test::schedules())
    test::compare_with(
        spec, test::random_mass(1), schedule,
        [&](int table) {
          Naive one = naive;
          one.table = table;
          return one;
        },
        kLayout);
}

TEST(KeyDiff, KeepsWhatItsDefinitionSays) {
  compare("keydiff:budget=20,every=9", {.score = cosines, .budget = 20, .every = 9});
  compare("keydiff:budget=24,every=1,sinks=3,recent=6,prompt=blocks",
          {.score = cosines, .budget = 24, .sinks = 3, .recent = 6, .every = 1, .blocks = true});
  compare("keydiff:budget=20,measure=norm", {.score = norms, .budget = 20});
  compare("keydiff:budget=20,measure=distance,every=0",
          {.score = [](int table, const auto& held) { return distances(table, held, held.size()); },
           .budget = 20,
           .every = 0});
  compare("keydiff:budget=30,measure=distance,span=16,every=5,prompt=blocks",
          {.score = [](int table, const auto& held) { return distances(table, held, 16); },
           .budget = 30,
           .every = 5,
           .blocks = true});
}

TEST(LagKv, KeepsWhatItsDefinitionSays) {
  compare("lagkv:budget=30,lag=6,every=7",
          {.score = [](int table, const auto& held) { return lags(table, held, 4, 6, true); },
           .budget = 30,
           .sinks = 4,
           .every = 7});
  compare("lagkv:budget=24,sinks=0,lag=5,rank=all,every=3,prompt=blocks",
          {.score = [](int table, const auto& held) { return lags(table, held, 0, 5, false); },
           .budget = 24,
           .every = 3,
           .blocks = true});
}

// What queries of the positions to come may give each token, from the queries so far. Without rotation.
Scores expectations(int table, const std::vector<TokenIndex>& held, TokenIndex seen, TokenIndex sinks) {
  Scores scores(held.size());
  const auto first =
      static_cast<std::size_t>(std::ranges::count_if(held, [&](TokenIndex token) { return token < sinks; }));
  for (int head = 0; head < kLayout.heads; ++head) {
    const auto queries = static_cast<long double>(seen - sinks);
    const auto query = [&](TokenIndex token) {
      Vector all;
      for (int i = 0; i < kDims; ++i) all[static_cast<std::size_t>(i)] = test::query_element(table, head, token, i);
      return all;
    };
    Vector mean{};
    std::array<Vector, kDims> spread{};
    for (TokenIndex token = sinks; token < seen; ++token)
      for (std::size_t i = 0; i < kDims; ++i) mean[i] += query(token)[i] / queries;
    for (TokenIndex token = sinks; token < seen; ++token)
      for (std::size_t i = 0; i < kDims; ++i)
        for (std::size_t j = 0; j < kDims; ++j)
          spread[i][j] += (query(token)[i] - mean[i]) * (query(token)[j] - mean[j]) / queries;
    Scores weights;
    for (std::size_t j = first; j < held.size(); ++j) {
      const Vector key = vector_of(table, held[j], key_element);
      long double square = 0;
      for (std::size_t i = 0; i < kDims; ++i) square += key[i] * dot(spread[i], key);
      weights.push_back(std::exp(dot(mean, key) / std::sqrt(4.0L) + square / 8));
    }
    const long double sum = std::accumulate(weights.begin(), weights.end(), 0.0L);
    for (std::size_t j = first; j < held.size(); ++j) {
      const Vector value = vector_of(table, held[j], value_element);
      scores[j] += weights[j - first] / sum / kLayout.heads * std::sqrt(dot(value, value));
    }
  }
  return scores;
}

TEST(Expected, KeepsWhatItsDefinitionSays) {
  const auto score = [](int table, const std::vector<TokenIndex>& held) {
    return expectations(table, held, held.back() + 1, 4);
  };
  compare("expected:budget=20,every=9", {.score = score, .budget = 20, .sinks = 4, .every = 9});
  compare("expected:budget=24,every=3,recent=2,prompt=blocks",
          {.score = score, .budget = 24, .sinks = 4, .recent = 2, .every = 3, .blocks = true});
}

TEST(HeldScored, ArePoliciesLikeTheOthers) {
  for (const char* spec : {"expected:budget=20,every=5", "expected:budget=20,prompt=blocks,spread=off"})
    test::check_scored_policy(spec);
  for (const char* spec : {"keydiff:budget=20,every=5", "keydiff:budget=20,prompt=blocks,every=1",
                           "keydiff:budget=30%,recent=2,prompt=blocks", "keydiff:budget=20,every=0",
                           "keydiff:budget=25,prompt=blocks,every=0", "lagkv:budget=24,lag=6,every=4",
                           "lagkv:budget=24,lag=6,prompt=blocks,protect=9", "keydiff:budget=30+h2o:budget=24,recent=5",
                           "snapkv:budget=30,window=6+keydiff:budget=24,every=3"})
    test::check_scored_policy(spec);
}

TEST(HeldScored, RefusesWhatCannotBe) {
  test::expect_refused("keydiff:span=16", {"span=16", "measure=distance"});
  test::expect_refused("keydiff:measure=l2", {"l2", "cosine, distance, norm"});
  test::expect_refused("keydiff:budget=10,sinks=6,recent=6", {"sinks=6", "recent=6", "budget=10"});
  test::expect_refused("lagkv:lag=1", {"lag=1", "2 to 2^20"});
  test::expect_refused("lagkv:prompt=half", {"half", "whole, blocks"});
  test::expect_refused("keydiff:prompt=blocks+lethe", {"prompt=blocks", "omit"});
}

// A prompt is pruned at its end alone, unless by blocks.
TEST(HeldScored, BoundsAndPrefixes) {
  const auto policy = [](const std::string& spec) { return test::policy_of_tables(spec, kLayout); };
  EXPECT_EQ(policy("keydiff:budget=100")->bound(), std::nullopt);
  EXPECT_TRUE(policy("keydiff:budget=100")->traits().holds_prompts);
  EXPECT_EQ(policy("keydiff:budget=100,prompt=blocks")->bound(), 164);
  EXPECT_FALSE(policy("keydiff:budget=100,prompt=blocks")->traits().holds_prompts);
  EXPECT_EQ(policy("keydiff:budget=100")->exact_prefix(1000), 999);
  EXPECT_EQ(policy("keydiff:budget=100")->exact_prefix(100), 100);
  EXPECT_EQ(policy("lagkv:budget=100,prompt=blocks")->exact_prefix(1000), 100);
}

}  // namespace
}  // namespace kvasir
