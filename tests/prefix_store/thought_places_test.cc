// Places of texts before which answers had thoughts.
#include "prefix_store/thought_places.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace kvasir {
namespace {

std::vector<TokenId> first(int count, TokenId from = 0) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

TEST(ThoughtPlaces, AreThoseOfATextThatGoesOn) {
  ThoughtPlaces places;
  EXPECT_FALSE(places.passed({"a", ""}, first(20), 0));
  places.remember({"a", ""}, first(10));
  EXPECT_TRUE(places.passed({"a", ""}, first(20), 0));
  EXPECT_TRUE(places.passed({"a", ""}, first(11), 10));
  EXPECT_FALSE(places.passed({"a", ""}, first(10), 0)) << "it does not go on";
  EXPECT_FALSE(places.passed({"a", ""}, first(20), 11)) << "the place is before";
  EXPECT_FALSE(places.passed({"b", ""}, first(20), 0)) << "another salt";
  EXPECT_FALSE(places.passed({"a", "q4"}, first(20), 0)) << "another codec";
  EXPECT_FALSE(places.passed({"a", ""}, first(20, 1), 0)) << "another text";
}

TEST(ThoughtPlaces, AreBounded) {
  ThoughtPlaces places;
  const int most = static_cast<int>(ThoughtPlaces::kMost);
  for (int i = 0; i <= most; ++i) places.remember({"", ""}, first(1, i));
  EXPECT_FALSE(places.passed({"", ""}, std::vector<TokenId>{0, 7}, 0));
  EXPECT_TRUE(places.passed({"", ""}, std::vector<TokenId>{1, 7}, 0));
  EXPECT_TRUE(places.passed({"", ""}, std::vector<TokenId>{most, 7}, 0));
}

}  // namespace
}  // namespace kvasir
