#include "generation/drafting.h"

#include <gtest/gtest.h>

#include <random>

namespace kvasir {
namespace {

using Tokens = std::vector<TokenId>;

TEST(Drafting, ReadsItsOptions) {
  EXPECT_FALSE(parse_draft("")->has_value());
  EXPECT_FALSE(parse_draft("off")->has_value());
  EXPECT_EQ((*parse_draft("ngram"))->match, 3);
  EXPECT_EQ((*parse_draft("ngram:match=2,most=4"))->match, 2);
  EXPECT_EQ((*parse_draft("ngram:most=4"))->most, 4);
  EXPECT_EQ((*parse_draft("policy:streaming:cap=5"))->policy, "streaming:cap=5");
  EXPECT_TRUE((*parse_draft("model"))->model);
  EXPECT_EQ((*parse_draft("model:most=4"))->most, 4);
  EXPECT_FALSE((*parse_draft("ngram"))->run());
  for (const char* wrong : {"n", "ngram:", "ngram:x=1", "ngram:most=0", "ngram:most=8", "ngram:match=17", "ngram:most",
                            "ngram:most=", "ngram:most=3x", "ngram,most=3", "on", "policy", "policy:"}) {
    if (std::string_view(wrong) == "ngram:") continue;
    EXPECT_EQ(parse_draft(wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_FALSE(parse_draft(wrong).status().message().empty());
  }
}

TEST(Drafting, TakesWhatFollowedTheLongestMatch) {
  const Tokens history = {1, 2, 3, 9, 9, 2, 3, 8, 8, 5, 2};
  EXPECT_EQ(tokens_that_followed(history, 3, 2, 3), (Tokens{8, 8, 5}));  // the newest of equally long ones
  const Tokens longer = {1, 2, 3, 9, 9, 2, 3, 8, 8, 1, 2};
  EXPECT_EQ(tokens_that_followed(longer, 3, 2, 3), (Tokens{9, 9, 2}));  // the longest
  EXPECT_EQ(tokens_that_followed(longer, 3, 4, 3), Tokens());           // none is as long
  EXPECT_EQ(tokens_that_followed(longer, 7, 1, 3), Tokens());
  EXPECT_EQ(tokens_that_followed({}, 7, 1, 3), Tokens());
  EXPECT_EQ(tokens_that_followed(Tokens{7}, 7, 1, 3), (Tokens{7, 7, 7}));
  EXPECT_EQ(tokens_that_followed(longer, 3, 1, 1), Tokens{9});
}

// Against a search that tries every place and length.
TEST(Drafting, AgreesWithAPlainSearch) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    Tokens all;
    const int size = 1 + static_cast<int>(random() % 40);
    for (int i = 0; i < size; ++i) all.push_back(static_cast<TokenId>(random() % 4));
    const int match = 1 + static_cast<int>(random() % 4), most = 1 + static_cast<int>(random() % 7);
    Tokens expected;
    for (int length = size - 1; length >= match && expected.empty(); --length) {
      for (int end = size - 1; end >= length; --end) {
        if (!std::equal(all.end() - length, all.end(), all.begin() + end - length)) continue;
        for (int at = end; at < end + most; ++at)
          expected.push_back(at < size ? all[static_cast<std::size_t>(at)]
                                       : expected[static_cast<std::size_t>(at - size)]);
        break;
      }
    }
    EXPECT_EQ(tokens_that_followed(std::span(all).first(all.size() - 1), all.back(), match, most), expected);
  }
}

// Drafts of the model wait for a pass without drafts, and pause, longer each time, while they take longer than those.
TEST(Drafting, OfTheModelPauseWhereTheyTakeLonger) {
  Drafting drafting(DraftOptions{.policy = "window:size=8"});
  EXPECT_EQ(drafting.wanted(), 0);
  drafting.note_seconds(1, 1, false);
  for (const int pause : {32, 64, 128}) {
    for (int pass = 0; pass < 8; ++pass) {
      EXPECT_GT(drafting.wanted(), 0);
      drafting.note_seconds(5, 4, true);
    }
    for (int token = 0; token < pause; ++token) EXPECT_EQ(drafting.wanted(), 0);
  }
  // Where they pay, one token in eight passes is without drafts.
  for (int pass = 0; pass < 8; ++pass) {
    EXPECT_GT(drafting.wanted(), 0);
    drafting.note_seconds(3, 4, true);
  }
  EXPECT_EQ(drafting.wanted(), 0);
  EXPECT_GT(drafting.wanted(), 0);
}

TEST(Drafting, PausesWhereNothingComesTrue) {
  const Tokens history = {1, 2, 3, 1, 2, 3, 1, 2};
  Drafting drafting({.match = 1, .most = 7});
  int drafts = 0;
  for (int token = 0; token < 200; ++token) {
    const auto found = drafting.draft(history, 3);
    if (found.empty()) continue;
    ++drafts;
    drafting.note(static_cast<int>(found.size()), 0);
  }
  EXPECT_GT(drafts, 4);
  EXPECT_LT(drafts, 12);
  EXPECT_EQ(drafting.came_true(), 0);
  // It drafts in full again once all come true.
  for (int token = 0; token < 100; ++token) {
    const auto found = drafting.draft(history, 3);
    if (!found.empty()) drafting.note(static_cast<int>(found.size()), static_cast<int>(found.size()));
  }
  EXPECT_EQ(drafting.draft(history, 3).size(), 7U);
}

}  // namespace
}  // namespace kvasir
