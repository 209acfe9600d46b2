#include "base/nearest.h"

#include <gtest/gtest.h>

#include <array>

namespace kvasir {
namespace {

TEST(Nearest, Distance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("rnu", "run"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("ca", "abc"), 3);   // nothing is edited twice
  EXPECT_EQ(edit_distance("KV_Memory", "kv-memory"), 0);
}

TEST(Nearest, Name) {
  constexpr std::array<std::string_view, 6> kNames = {"run", "record", "replay", "temp", "top-k", "repeat-penalty"};
  const auto nearest = [&](std::string_view typed) { return nearest_name(typed, kNames).value_or("none"); };
  EXPECT_EQ(nearest("rnu"), "run");
  EXPECT_EQ(nearest("runn"), "run");
  EXPECT_EQ(nearest("recrod"), "record");
  EXPECT_EQ(nearest("relpay"), "replay");
  EXPECT_EQ(nearest("repeat"), "repeat-penalty");  // a beginning
  EXPECT_EQ(nearest("temperature"), "temp");       // the other way round
  EXPECT_EQ(nearest("TOP_K"), "top-k");
  EXPECT_EQ(nearest("r"), "none");
  EXPECT_EQ(nearest(""), "none");
  EXPECT_EQ(nearest("chat"), "none");
  EXPECT_EQ(nearest(std::string(100000, 'r')), "none");
}

// The nearest of several; the first on a tie.
TEST(Nearest, Order) {
  constexpr std::array<std::string_view, 3> kNames = {"abcdeg", "abcdef", "abcdex"};
  EXPECT_EQ(nearest_name("abcdef", kNames), "abcdef");
  EXPECT_EQ(nearest_name("abcdez", kNames), "abcdeg");
}

TEST(Nearest, Question) {
  constexpr std::array<std::string_view, 1> kNames = {"h2o"};
  EXPECT_EQ(did_you_mean("h20", kNames), "; did you mean 'h2o'?");
  EXPECT_EQ(did_you_mean("lethe", kNames), "");
}

}  // namespace
}  // namespace kvasir
