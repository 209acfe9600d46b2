// Windows of rolling log-likelihoods, against properties and an example of lm-evaluation-harness.
#include <gtest/gtest.h>

#include <numeric>

#include "harness/prompt_tokens.h"

namespace kvasir::test {
namespace {

TEST(RollingWindows, AsInTheExampleOfLmEvaluationHarness) {
  // Its get_rolling_token_windows(range(10), prefix_token=-100, max_seq_len=3, context_len=1), by whose windows of
  // inputs and predictions of three tokens each ours hold four.
  Tokens tokens(10);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::vector<RollingWindow> windows = rolling_windows(tokens, -100, 4);
  ASSERT_EQ(windows.size(), 4U);
  EXPECT_EQ(windows[0].tokens, (Tokens{-100, 0, 1, 2}));
  EXPECT_EQ(windows[0].first_scored, 1U);
  EXPECT_EQ(windows[1].tokens, (Tokens{2, 3, 4, 5}));
  EXPECT_EQ(windows[2].tokens, (Tokens{5, 6, 7, 8}));
  EXPECT_EQ(windows[3].tokens, (Tokens{6, 7, 8, 9}));
  EXPECT_EQ(windows[3].first_scored, 3U);
}

TEST(RollingWindows, ScoreEachTokenOnce) {
  for (const std::size_t count : {1U, 2U, 5U, 31U, 32U, 33U, 100U})
    for (const std::size_t room : {2U, 3U, 16U, 33U, 200U}) {
      Tokens tokens(count);
      std::iota(tokens.begin(), tokens.end(), 1000);
      std::vector<int> scored(count);
      for (const RollingWindow& window : rolling_windows(tokens, 7, room)) {
        EXPECT_LE(window.tokens.size(), room);
        EXPECT_GE(window.first_scored, 1U);
        for (std::size_t i = window.first_scored; i < window.tokens.size(); ++i)
          ++scored[static_cast<std::size_t>(window.tokens[i] - 1000)];
        for (std::size_t i = 1; i < window.tokens.size(); ++i)
          if (window.tokens[i - 1] != 7) {
            EXPECT_EQ(window.tokens[i], window.tokens[i - 1] + 1);
          }
      }
      EXPECT_EQ(scored, std::vector<int>(count, 1)) << count << " tokens, room " << room;
    }
}

}  // namespace
}  // namespace kvasir::test
