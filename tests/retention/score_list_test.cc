// The bookkeeping of attention-scored policies against sorted lists.
#include "retention/score_list.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

#include "retention/budget.h"

namespace kvasir {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ScoreList filled(std::span<const double> scores) {
  ScoreList list(2);
  list.enter({.first = 0, .rows = static_cast<int>(scores.size())}, false);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    list.insert_next();
    list.values(0)[i] = scores[i];
    list.values(1)[i] = 100 + static_cast<double>(i);
  }
  return list;
}

// What the list hands over as dropped, token by token.
std::vector<TokenIndex> handed_over(ScoreList& list) {
  KeepPlan plan;
  list.hand_over(plan);
  std::vector<TokenIndex> tokens;
  for (const IndexRange& range : plan.drop)
    for (TokenIndex token = range.begin; token < range.end; ++token) tokens.push_back(token);
  return tokens;
}

TEST(ScoreList, DropsTheLowestOfARange) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 500; ++round) {
    const int n = 1 + static_cast<int>(random() % 40);
    std::vector<double> scores;
    for (int i = 0; i < n; ++i) {
      const auto kind = random() % 12;
      scores.push_back(kind == 0 ? kNan : static_cast<double>(random() % 6));
    }
    const int first = static_cast<int>(random() % static_cast<unsigned>(n + 1));
    const int last = first + static_cast<int>(random() % static_cast<unsigned>(n - first + 1));
    const int count = static_cast<int>(random() % 8);

    std::vector<std::pair<double, TokenIndex>> order;  // lowest first; what is not a number is the largest
    for (int i = first; i < last; ++i) {
      const double score = scores[static_cast<std::size_t>(i)];
      order.emplace_back(score == score ? score : std::numeric_limits<double>::infinity(), i);
    }
    std::sort(order.begin(), order.end());
    order.resize(std::min(order.size(), static_cast<std::size_t>(count)));
    std::vector<TokenIndex> gone;
    for (const auto& [score, id] : order) gone.push_back(id);
    std::sort(gone.begin(), gone.end());

    ScoreList list = filled(scores);
    list.drop_lowest(count, first, last, list.values());
    ASSERT_EQ(handed_over(list), gone) << "round " << round;
    ASSERT_EQ(list.size(), n - std::ssize(gone));
    for (std::int64_t i = 0; i < list.size(); ++i) {
      const auto id = static_cast<std::size_t>(list.tokens()[static_cast<std::size_t>(i)]);
      ASSERT_FALSE(std::binary_search(gone.begin(), gone.end(), static_cast<TokenIndex>(id)));
      ASSERT_EQ(list.values(1)[static_cast<std::size_t>(i)], 100 + static_cast<double>(id));
    }
  }
}

TEST(ScoreList, FindsTheLowestWhereverItStands) {
  for (std::size_t n = 1; n < 70; ++n)
    for (std::size_t at = 0; at < n; ++at) {
      std::vector<double> scores(n, 5.0);
      scores[at] = 1.0;
      ASSERT_EQ(place_of_lowest(scores), static_cast<std::int64_t>(at));
      if (at + 1 < n) scores[n - 1] = 1.0;
      ASSERT_EQ(place_of_lowest(scores), static_cast<std::int64_t>(at)) << "of equal ones the first";
      scores[at] = kNan;
      ASSERT_EQ(place_of_lowest(scores), at + 1 < n ? static_cast<std::int64_t>(n - 1) : n == 1 ? 0 : 0);
    }
  EXPECT_EQ(place_of_lowest(std::vector<double>(20, kNan)), 0);
}

TEST(ScoreList, ForgetsWithoutListing) {
  ScoreList list = filled(std::vector<double>{0, 1, 2, 3, 4, 5});
  list.drop(2);
  const std::vector<IndexRange> gone = {{0, 1}, {2, 4}, {9, 10}};
  list.forget(gone);
  EXPECT_EQ(std::vector<TokenIndex>(list.tokens().begin(), list.tokens().end()), (std::vector<TokenIndex>{1, 4, 5}));
  EXPECT_EQ(list.values()[1], 4);
  EXPECT_EQ(handed_over(list), (std::vector<TokenIndex>{2}));
}

TEST(ScoreList, TokensEnterTogetherAndWait) {
  ScoreList list;
  list.enter({.first = 0, .rows = 3}, true);
  list.enter({.first = 0, .rows = 3}, true);
  EXPECT_EQ(list.all(), 3);
  EXPECT_EQ(list.size(), 0);
  list.insert_next();
  list.insert_next();
  list.drop(0);
  EXPECT_EQ(list.size(), 1);
  EXPECT_EQ(list.all(), 2);
  EXPECT_EQ(list.place_in_chunk(0), 1);
  EXPECT_EQ(list.place_in_chunk(1), 2);
  list.insert_next();
  EXPECT_EQ(list.size(), 2);
}

// Against a map from token to value, over more single drops than the arrays have room for in front.
TEST(ScoreList, AgreesWithAMapOverManyDrops) {
  constexpr std::int64_t kMost = 200;
  std::mt19937_64 random(2);
  ScoreList list(2);
  std::map<TokenIndex, double> model;
  std::uint64_t bytes = 0;
  for (int step = 0; step < 3000; ++step) {
    const int rows = random() % 16 == 0 ? 1 + static_cast<int>(random() % 5) : 1;
    const PolicyChunk chunk{.first = list.next_token(), .rows = rows};
    list.enter(chunk, random() % 2 == 0, kMost + 5);
    std::vector<TokenIndex> gone;
    for (int row = 0; row < rows; ++row) {
      const auto place = static_cast<std::size_t>(list.size());
      ASSERT_EQ(list.tokens()[place], chunk.first + row);
      ASSERT_EQ(list.values(1)[place], 0.0);
      list.insert_next();
      list.values(1)[place] = model[chunk.first + row] = static_cast<double>(random() % 1000);
      while (list.size() > kMost || (list.size() > 0 && random() % 64 == 0)) {
        const auto held = static_cast<std::uint64_t>(list.size());
        const auto at = static_cast<std::int64_t>(random() % 4 == 0 ? random() % held : random() % (held / 3 + 1));
        gone.push_back(list.tokens()[static_cast<std::size_t>(at)]);
        model.erase(gone.back());
        list.drop(at);
      }
    }
    std::ranges::sort(gone);
    ASSERT_EQ(handed_over(list), gone) << "step " << step;
    ASSERT_EQ(list.size(), std::ssize(model));
    ASSERT_EQ(list.tokens().size(), model.size());
    std::size_t place = 0;
    for (const auto& [token, value] : model) {
      ASSERT_EQ(list.tokens()[place], token);
      ASSERT_EQ(list.values(1)[place], value);
      ++place;
    }
    bytes = std::max(bytes, list.bytes());
  }
  EXPECT_LE(bytes, ScoreList::most_bytes(2, kMost + 5, kMost + 5, 5, true));
}

TEST(ScoreList, GivesMemoryBackAfterALongPrompt) {
  ScoreList list = filled(std::vector<double>(10'000, 1.0));
  const std::uint64_t full = list.bytes();
  list.drop_lowest(9'900, 0, list.size(), list.values());
  EXPECT_EQ(handed_over(list).size(), 9'900U);
  EXPECT_LT(list.bytes(), full / 50);
  ASSERT_EQ(list.size(), 100);
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(list.tokens()[i], static_cast<TokenIndex>(9'900 + i));
    EXPECT_EQ(list.values(1)[i], 10'000 + static_cast<double>(i));
  }
}

TEST(Budget, AShareIsRoundedUpExactly) {
  EXPECT_EQ((Budget{.tokens = 7}).at(1'000'000), 7);
  const Budget share{.millionths = 300'000};
  EXPECT_EQ(share.at(0), 0);
  EXPECT_EQ(share.at(1), 1);
  EXPECT_EQ(share.at(10), 3);
  EXPECT_EQ(share.at(11), 4);
  for (std::int64_t n = 1; n < 3000; ++n) ASSERT_EQ((Budget{.millionths = 70'000}).at(n), (7 * n + 99) / 100);
  EXPECT_EQ((Budget{.millionths = 1'000'000}).at(std::int64_t{1} << 62), std::int64_t{1} << 62);
  EXPECT_EQ((Budget{.millionths = 1}).at(1'000'001), 2);
}

}  // namespace
}  // namespace kvasir
