// StopMatcher against a naive search of the whole text.
#include "generation/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvasir {
namespace {

// Where the text ends: the stop string that is complete first; of those complete with the same byte the longest, which
// begins first. `end` is where it is complete.
struct Found {
  std::size_t begin = std::string::npos;
  std::size_t end = std::string::npos;
};
Found naive(const std::string& text, const std::vector<std::string>& stops) {
  Found found;
  for (std::size_t end = 1; end <= text.size() && found.end == std::string::npos; ++end)
    for (const std::string& stop : stops)
      if (text.substr(0, end).ends_with(stop)) found = {std::min(found.begin, end - stop.size()), end};
  return found;
}

TEST(StopMatcher, AgreesWithTheNaiveSearchByteByByte) {
  std::mt19937 random(1);
  const auto word = [&](std::size_t most) {
    std::string out(1 + random() % most, 'a');
    for (char& c : out) c = static_cast<char>('a' + random() % 2);
    return out;
  };
  int stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (std::size_t n = random() % 4; n > 0; --n) stops.push_back(word(6));
    const std::string text = word(30);
    StopMatcher matcher(stops);
    std::string shown;
    const Found want = naive(text, stops);
    for (std::size_t i = 0; i < text.size(); ++i) {
      shown += matcher.push(text.substr(i, 1));
      const bool due = i + 1 >= want.end;
      ASSERT_EQ(matcher.stopped(), due) << text << " at " << i;
      if (due) continue;
      // Shown is all that no stop string can begin in.
      std::size_t hold = 0;
      const std::string so_far = text.substr(0, i + 1);
      for (const std::string& stop : stops)
        for (std::size_t n = 1; n < stop.size(); ++n)
          if (so_far.ends_with(stop.substr(0, n))) hold = std::max(hold, n);
      ASSERT_EQ(shown, so_far.substr(0, so_far.size() - hold)) << text;
    }
    shown += matcher.flush();
    ASSERT_EQ(shown, text.substr(0, want.begin)) << text;
    stopped += matcher.stopped() ? 1 : 0;
  }
  EXPECT_GT(stopped, 1000);
  EXPECT_LT(stopped, 19000);
}

// In larger pieces the first occurrence counts, as in the whole text.
TEST(StopMatcher, PiecesOfAnySize) {
  std::mt19937 random(2);
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 60, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    const std::string stop = text.empty() ? "abc" : text.substr(random() % text.size(), 1 + random() % 5);
    StopMatcher matcher({stop, "cccccc"});
    std::string shown;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = 1 + random() % 9;
      shown += matcher.push(std::string_view(text).substr(at, n));
      at += n;
    }
    shown += matcher.flush();
    ASSERT_EQ(shown, text.substr(0, std::min(text.find(stop), text.find("cccccc")))) << text << " / " << stop;
  }
}

TEST(StopMatcher, SwallowsWhatComesAfterwards) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("go on s"), "go on ");
  EXPECT_EQ(matcher.push("topping"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, ContinuesFromItsState) {
  std::mt19937 random(3);
  int held = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 30, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    const std::vector<std::string> stops = {"abbab", "bbaa", "aaaa"};
    StopMatcher whole(stops);
    StopMatcher parts(stops);
    for (const char c : text) {
      auto next = StopMatcher::from_state(parts.stops(), parts.state());
      ASSERT_TRUE(next.ok()) << next.status().message();
      parts = std::move(*next);
      const std::string_view piece(&c, 1);
      ASSERT_EQ(parts.push(piece), whole.push(piece));
      ASSERT_EQ(parts.stopped(), whole.stopped());
      held += parts.state().held.empty() ? 0 : 1;
    }
    ASSERT_EQ(parts.flush(), whole.flush());
  }
  EXPECT_GT(held, 1000);
}

TEST(StopMatcher, StatesThatNoTextLeadsToAreRefused) {
  const std::vector<std::string> stops = {"abcd", "b"};
  EXPECT_TRUE(StopMatcher::from_state(stops, {"a", false}).ok());
  EXPECT_TRUE(StopMatcher::from_state(stops, {"", true}).ok());
  EXPECT_TRUE(StopMatcher::from_state({}, {}).ok());
  for (const StopMatcherState& state : {StopMatcherState{"x", false}, StopMatcherState{"ab", false},
                                        StopMatcherState{"abcd", false}, StopMatcherState{"a", true}})
    EXPECT_EQ(StopMatcher::from_state(stops, state).status().code(), StatusCode::kDataLoss) << state.held;
  EXPECT_EQ(StopMatcher::from_state({}, {"", true}).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvasir
