// `keydiff`, `lagkv`, `expected` and `triattention` against their definitions, computed in long double from all keys
// and values at once.
#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <complex>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "retention/expect_refused.h"
#include "retention/query_profile.h"
#include "retention/registry.h"
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

void compare(const std::string& spec, const Naive& naive, const TableLayout& layout = kLayout) {
  for (const auto& schedule : test::schedules())
    test::compare_with(
        spec, test::random_mass(1), schedule,
        [&](int table) {
          Naive one = naive;
          one.table = table;
          return one;
        },
        layout);
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

const TableLayout kTurned{.layers = 2,
                          .per_layer = 2,
                          .heads = 2,
                          .head_dim = kDims,
                          .turns = std::make_shared<const std::vector<QueryTurn>>(
                              std::vector<QueryTurn>{{{0.9F, 0.013F}, 1, 0.5F}, {{0.4F}, 1, 0.5F}})};
using Pair = std::complex<long double>;

// A file that goes away with the object.
class ProfileFile {
 public:
  explicit ProfileFile(const QueryProfile& profile)
      : path_(std::filesystem::temp_directory_path() / fmt::format("kvasir-queries-{}.profile", ::getpid())) {
    std::ofstream(path_) << format_query_profile(profile);
  }
  ~ProfileFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// The statistics of a query head: E[q] of each pair, and E|q|.
struct PairStatistics {
  std::array<Pair, kDims / 2> mean{};
  std::array<long double, kDims / 2> length{};
};

// Scores of keys from distances to queries to come, with keys as they were before rotation.
Scores at_distances(int table, const std::vector<TokenIndex>& held,
                    const std::function<PairStatistics(int head)>& statistics) {
  const auto& frequencies = (*kTurned.turns)[static_cast<std::size_t>(table / kTurned.per_layer)].frequencies;
  const TokenIndex seen = held.back() + 1;
  Scores most(held.size(), -INFINITY);
  for (int head = 0; head < kTurned.heads; ++head) {
    const PairStatistics own = statistics(head);
    Scores scores;
    for (const TokenIndex token : held) {
      long double score = 0;
      for (std::size_t f = 0; f < frequencies.size(); ++f) {
        const long double step = frequencies[f];
        const Pair stored(key_element(table, token, static_cast<int>(2 * f)),
                          key_element(table, token, static_cast<int>(2 * f + 1)));
        const Pair key = stored * std::polar(1.0L, -static_cast<long double>(token) * step);
        for (int o = 0; o <= 16; ++o) {
          const long double distance = static_cast<long double>(seen - token) + std::pow(2.0L, o);
          score += std::abs(own.mean[f]) * std::abs(key) *
                   std::cos(distance * step + std::arg(own.mean[f] * std::conj(key))) / 17;
        }
        score += (own.length[f] - std::abs(own.mean[f])) * std::abs(key);
      }
      scores.push_back(score);
    }
    const long double count = std::ssize(held);
    const long double mean = std::accumulate(scores.begin(), scores.end(), 0.0L) / count;
    long double square = 0;
    for (const long double score : scores) square += (score - mean) * (score - mean) / count;
    for (std::size_t i = 0; i < held.size(); ++i)
      most[i] = std::max(most[i], (scores[i] - mean) / std::max(std::sqrt(square), 1e-6L));
  }
  return most;
}

TEST(TriAttention, KeepsWhatItsDefinitionSaysOfAProfile) {
  QueryProfile profile{.layers = 2, .heads = 4, .head_dim = kDims, .articles = 1, .tokens = 7};
  for (int i = 0; i < 2 * 4 * kDims; ++i) profile.means.push_back(std::sin(3.7 * i));
  for (int i = 0; i < 2 * 4 * kDims / 2; ++i) profile.lengths.push_back(1.5 + std::cos(2.3 * i));
  const ProfileFile file(profile);
  const auto score = [&](int table, const std::vector<TokenIndex>& held) {
    return at_distances(table, held, [&](int head) {
      PairStatistics own;
      const int query_head = table % 2 * 2 + head;
      for (std::size_t f = 0; f < kDims / 2; ++f) {
        own.mean[f] = {profile.mean(table / 2, query_head)[2 * f], profile.mean(table / 2, query_head)[2 * f + 1]};
        own.length[f] = std::max<long double>(profile.length(table / 2, query_head)[f], std::abs(own.mean[f]));
      }
      return own;
    });
  };
  compare("triattention:budget=20,recent=3,every=9,profile=" + file.path(),
          {.score = score, .budget = 20, .recent = 3, .every = 9}, kTurned);
  compare("triattention:budget=24,sinks=2,recent=0,every=4,prompt=blocks,profile=" + file.path(),
          {.score = score, .budget = 24, .sinks = 2, .every = 4, .blocks = true}, kTurned);
}

TEST(TriAttention, TheTextsOwnQueriesStandInForAProfile) {
  const auto score = [](int table, const std::vector<TokenIndex>& held) {
    return at_distances(table, held, [&](int head) {
      PairStatistics own;
      const auto count = static_cast<long double>(held.back() + 1);
      for (TokenIndex token = 0; token <= held.back(); ++token)
        for (std::size_t f = 0; f < kDims / 2; ++f) {
          const Pair query(test::query_element(table, head, token, static_cast<int>(2 * f)),
                           test::query_element(table, head, token, static_cast<int>(2 * f + 1)));
          own.mean[f] += query / count;
          own.length[f] += std::norm(query) / count;
        }
      for (long double& length : own.length) length = std::sqrt(length);
      return own;
    });
  };
  compare("triattention:budget=20,recent=3,every=9", {.score = score, .budget = 20, .recent = 3, .every = 9}, kTurned);
}

TEST(TriAttention, RefusesProfilesOfOtherModels) {
  QueryProfile profile{.layers = 2, .heads = 4, .head_dim = 2, .articles = 1, .tokens = 7};
  profile.means.resize(2 * 4 * 2, 0.5);
  profile.lengths.resize(2 * 4, 1);
  const ProfileFile file(profile);
  const auto policy = make_policy("triattention:profile=" + file.path());
  ASSERT_TRUE(policy.ok()) << policy.status().message();
  EXPECT_TRUE((*policy)->traits().spec.starts_with("triattention:budget=2048,profile=" + file.path() + "#"));
  const auto check = [&](const PolicyModel& model) { return check_model(**policy, model); };
  EXPECT_TRUE(check({&profile.fingerprint, 2, 2, 0, 4, 2}).ok());
  EXPECT_FALSE(check({&profile.fingerprint, 3, 2, 0, 4, 2}).ok());
  EXPECT_FALSE(check({&profile.fingerprint, 2, 2, 0, 6, 2}).ok());
  EXPECT_FALSE(check({&profile.fingerprint, 2, 2, 0, 4, 64}).ok());
  const Hash128 other{1, 2};
  EXPECT_FALSE(check({&other, 2, 2, 0, 4, 2}).ok());
  // Within a composition, too.
  const auto pair = make_policy("snapkv:budget=20,window=6+triattention:budget=500,recent=8,profile=" + file.path());
  ASSERT_TRUE(pair.ok()) << pair.status().message();
  EXPECT_FALSE(check_model(**pair, {&other, 2, 2, 0, 4, 2}).ok());
}

TEST(QueryProfile, ReadsWhatItWrites) {
  QueryProfile profile{{3, 4}, 2, 3, 4, 5, 6000, {}, {}};
  for (int i = 0; i < 24; ++i) profile.means.push_back(std::sin(i) / 3);
  for (int i = 0; i < 12; ++i) profile.lengths.push_back(1.0 / (i + 3));
  const std::string text = format_query_profile(profile);
  const auto read = parse_query_profile(text, "q.profile");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, profile);
  for (std::size_t size = 0; size < text.size(); size += 7)
    EXPECT_FALSE(parse_query_profile(text.substr(0, size), "q.profile").ok()) << size;
  const auto with = [&](const std::string& old, const std::string& changed) {
    std::string damaged = text;
    damaged.replace(damaged.find(old), old.size(), changed);
    return parse_query_profile(damaged, "q.profile").status().message();
  };
  EXPECT_NE(with("heads 3", "heads 0").find("line 4"), std::string::npos);
  EXPECT_NE(with("head_dim 4", "head_dim 3").find("even"), std::string::npos);
  EXPECT_NE(with("tokens 6000", "tokens 6001").find("checksum"), std::string::npos);
  EXPECT_NE(with("mean 0 ", "mean nan ").find("line 9"), std::string::npos);
}

TEST(HeldScored, ArePoliciesLikeTheOthers) {
  for (const char* spec : {"expected:budget=20,every=5", "expected:budget=20,prompt=blocks,spread=off",
                           "triattention:budget=20,recent=4,every=5", "triattention:budget=20,recent=0,prompt=blocks"})
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
