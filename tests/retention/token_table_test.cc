// The bookkeeping of attention-scored policies against sorted lists.
#include "retention/token_table.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

#include "retention/budget.h"

namespace kvasir {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TokenTable filled(std::span<const double> scores) {
  TokenTable table(2);
  table.enter({.first = 0, .rows = static_cast<int>(scores.size())}, false);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    table.insert_next();
    table.values(0)[i] = scores[i];
    table.values(1)[i] = 100 + static_cast<double>(i);
  }
  return table;
}

TEST(TokenTable, DropsTheLowestOfARange) {
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

    TokenTable table = filled(scores);
    table.drop_lowest(count, first, last, table.values());
    std::vector<TokenIndex> dropped;
    table.hand_over(dropped);
    ASSERT_EQ(dropped, gone) << "round " << round;
    ASSERT_EQ(table.size(), n - std::ssize(gone));
    for (std::int64_t i = 0; i < table.size(); ++i) {
      const auto id = static_cast<std::size_t>(table.ids()[static_cast<std::size_t>(i)]);
      ASSERT_FALSE(std::binary_search(gone.begin(), gone.end(), static_cast<TokenIndex>(id)));
      ASSERT_EQ(table.values(1)[static_cast<std::size_t>(i)], 100 + static_cast<double>(id));
    }
  }
}

TEST(TokenTable, FindsTheLowestWhereverItStands) {
  for (std::size_t n = 1; n < 70; ++n)
    for (std::size_t at = 0; at < n; ++at) {
      std::vector<double> scores(n, 5.0);
      scores[at] = 1.0;
      ASSERT_EQ(index_of_lowest(scores), static_cast<std::int64_t>(at));
      if (at + 1 < n) scores[n - 1] = 1.0;
      ASSERT_EQ(index_of_lowest(scores), static_cast<std::int64_t>(at)) << "of equal ones the first";
      scores[at] = kNan;
      ASSERT_EQ(index_of_lowest(scores), at + 1 < n ? static_cast<std::int64_t>(n - 1) : n == 1 ? 0 : 0);
    }
  EXPECT_EQ(index_of_lowest(std::vector<double>(20, kNan)), 0);
}

TEST(TokenTable, ForgetsWithoutListing) {
  TokenTable table = filled(std::vector<double>{0, 1, 2, 3, 4, 5});
  table.drop(2);
  const std::vector<TokenIndex> gone = {0, 2, 3, 9};
  table.forget(gone);
  EXPECT_EQ(std::vector<TokenIndex>(table.ids().begin(), table.ids().end()), (std::vector<TokenIndex>{1, 4, 5}));
  EXPECT_EQ(table.values()[1], 4);
  std::vector<TokenIndex> dropped;
  table.hand_over(dropped);
  EXPECT_EQ(dropped, (std::vector<TokenIndex>{2}));
}

TEST(TokenTable, TokensEnterTogetherAndWait) {
  TokenTable table;
  table.enter({.first = 0, .rows = 3}, true);
  table.enter({.first = 0, .rows = 3}, true);
  EXPECT_EQ(table.all(), 3);
  EXPECT_EQ(table.size(), 0);
  table.insert_next();
  table.insert_next();
  table.drop(0);
  EXPECT_EQ(table.size(), 1);
  EXPECT_EQ(table.all(), 2);
  EXPECT_EQ(table.place_in_pass(0), 1);
  EXPECT_EQ(table.place_in_pass(1), 2);
  table.insert_next();
  EXPECT_EQ(table.size(), 2);
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
