// `streaming` and `window` against their definition, executed one token at a time.
#include "retention/start_recent.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>

#include "retention/naive.h"
#include "retention/state_checks.h"

namespace kvasir {
namespace {

struct Case {
  std::string spec;
  test::NaiveOptions options;
  bool rotate = false;
};

std::vector<Case> cases() {
  std::vector<Case> all = {
      {"window:size=1", {.window = 1}},
      {"window:size=12", {.window = 12}},
      {"window:size=100", {.window = 100}},
      {"streaming:sinks=2,window=10,every=4", {.sinks = 2, .window = 10, .every = 4}},
      {"streaming:sinks=0,window=10", {.window = 10}},
      {"streaming:sinks=1,window=1", {.sinks = 1, .window = 1}},
      {"streaming:sinks=70,window=5,every=3", {.sinks = 70, .window = 5, .every = 3}},
      {"streaming:window=30,every=64", {.sinks = 4, .window = 30, .every = 64}},
      {"streaming:window=30,every=64,max_drop=1", {.sinks = 4, .window = 30, .every = 64, .max_drop = 1}},
      {"streaming:window=30,every=16,max_drop=1000", {.sinks = 4, .window = 30, .every = 16, .max_drop = 1000}},
      {"streaming:window=30,every=0", {.sinks = 4, .window = 30, .every = 0}},
      {"streaming:window=30,every=0,slack=3", {.sinks = 4, .window = 30, .every = 0, .slack = 3}},
      {"streaming:window=30,slack=9", {.sinks = 4, .window = 30, .slack = 9}},
      {"streaming:cap=50", {.sinks = 4, .window = 46}},
      {"streaming:cap=50,sinks=3,slack=5,overlap=7,refresh=11,every=6",
       {.sinks = 3, .window = 50 - 3 - 5 - 7 - 11, .every = 6, .slack = 5}},
      {"streaming:cap=9,sinks=2,slack=1,overlap=2,refresh=3", {.sinks = 2, .window = 1, .slack = 1}},
  };
  std::mt19937_64 random(3);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int i = 0; i < 40; ++i) {
    Case c;
    c.options = {.sinks = draw(0, 3) * draw(0, 12),
                 .window = draw(1, 90),
                 .every = draw(0, 2) == 0 ? 1 : draw(1, 150),
                 .slack = draw(0, 1) * draw(0, 40),
                 .max_drop = draw(0, 1) * draw(0, 60)};
    c.spec = fmt::format("streaming:sinks={},every={},slack={},max_drop={}", c.options.sinks, c.options.every,
                         c.options.slack, c.options.max_drop);
    if (draw(0, 1) == 0) {
      c.spec += fmt::format(",window={}", c.options.window);
    } else {
      const int overlap = draw(0, 9), refresh = draw(0, 9);
      c.spec += fmt::format(",overlap={},refresh={},cap={}", overlap, refresh,
                            c.options.window + c.options.sinks + c.options.slack + overlap + refresh);
    }
    all.push_back(c);
  }
  const std::size_t plain = all.size();
  for (std::size_t i = 0; i < plain; ++i) {
    if (all[i].spec.starts_with("window")) continue;
    Case rotated = all[i];
    rotated.spec += ",realign=rotate";
    rotated.rotate = true;
    all.push_back(rotated);
  }
  return all;
}

constexpr TokenIndex kTokens = 700;

// Drives the policy in passes of want(done) tokens, and compares each row's view and the table behind each pass.
void compare(const Case& c, const std::vector<test::NaiveStep>& steps, int slots,
             const std::function<int(TokenIndex)>& want) {
  const auto policy = test::policy_of(c.spec);
  ASSERT_EQ(policy->traits().realign == Realign::kRotate, c.rotate);
  const auto cache = test::table_only(slots, kTokens / slots + 2);
  KvSequence sequence = cache->new_sequence();
  BatchTable batch;
  test::BatchRows masks;
  TokenIndex asked = 0;
  test::drive(
      *policy, *cache, sequence, kTokens,
      [&](TokenIndex done) {
        asked = want(done);
        return static_cast<int>(asked);
      },
      [&](const PageTable& table, const test::PassPlan& pass) {
        const TokenIndex first = table.next_index() - pass.rows;
        IndexRange ends;  // from the least to the greatest
        for (const IndexRange& hide : pass.hidden) {
          if (hide.empty()) continue;
          ends.begin = ends.end == 0 ? hide.end : std::min(ends.begin, hide.end);
          ends.end = std::max(ends.end, hide.end);
        }
        ASSERT_LE(ends.size(), pass.rows - 1);
        describe_table(table, pass.hidden, 0, &batch);
        test::expand(batch, &masks);
        for (int r = 0; r < pass.rows; ++r)
          ASSERT_EQ(test::indices_in(table, masks, masks.attended[static_cast<std::size_t>(r)]),
                    steps[static_cast<std::size_t>(first + r)].seen)
              << first + r;
        // Frames change between passes alone: with sinks the first prune ends a pass; with rotation every prune does.
        // No pass is shorter than that asks for.
        bool before = false;
        for (TokenIndex id = 0; id < first; ++id) before = before || steps[static_cast<std::size_t>(id)].pruned;
        const bool matters = c.rotate || (c.options.sinks > 0 && !before);
        const TokenIndex most = std::min(asked, kTokens - first);
        TokenIndex rows = 1;
        while (rows < most && !(matters && steps[static_cast<std::size_t>(first + rows - 1)].pruned)) ++rows;
        ASSERT_EQ(pass.rows, rows) << first;
      },
      [&](const PageTable& table, const test::PassPlan&) {
        ASSERT_EQ(test::retained_ids(table), steps[static_cast<std::size_t>(table.next_index() - 1)].kept)
            << table.next_index();
        ASSERT_LE(table.frames().size(), 2u);
      });
}

TEST(StartRecent, KeepsWhatTheDefinitionKeepsWhateverTheChunk) {
  for (const Case& c : cases()) {
    const auto steps = test::simulate(c.options, kTokens);
    for (const int chunk : {1, 7, 64, 512}) {
      SCOPED_TRACE(fmt::format("{} chunk {}", c.spec, chunk));
      compare(c, steps, 32, [&](TokenIndex done) { return chunk - static_cast<int>(done % chunk); });
      if (::testing::Test::HasFatalFailure()) return;
    }
    std::mt19937_64 random(11);
    for (const int slots : {16, 64}) {
      SCOPED_TRACE(fmt::format("{} random chunks, {} slots", c.spec, slots));
      compare(c, steps, slots,
              [&](TokenIndex) { return std::uniform_int_distribution<int>(1, random() % 4 == 0 ? 600 : 40)(random); });
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(StartRecent, TheBoundIsReachedAndNeverExceeded) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.spec);
    const auto policy = test::policy_of(c.spec);
    const std::int64_t target = c.options.sinks + c.options.window;
    if (c.options.every == 0) {
      EXPECT_EQ(policy->bound(), std::nullopt);
      continue;
    }
    ASSERT_TRUE(policy->bound().has_value());
    EXPECT_EQ(*policy->bound(), target + c.options.every + c.options.slack);
    const auto cache = test::table_only(16, 100);
    KvSequence sequence = cache->new_sequence();
    std::int64_t most = 0;
    test::drive(
        *policy, *cache, sequence, kTokens, [](TokenIndex) { return 1; },
        [&](const PageTable& table, const test::PassPlan&) { most = std::max(most, table.length()); },
        [](const PageTable&, const test::PassPlan&) {});
    EXPECT_EQ(most, *policy->bound());
  }
  EXPECT_EQ(test::policy_of("full")->bound(), std::nullopt);
}

TEST(StartRecent, WhatFormsAChunkChangesNothing) {
  for (const Case& c : cases()) {
    const auto policy = test::policy_of(c.spec);
    const auto steps = test::simulate(c.options, 400);
    bool pruned_before = false;
    for (TokenIndex id = 0; id < 400; ++id) {
      for (const int want : {1, 2, 50, 400}) {
        int until = 1;  // the next prune, if it comes first
        while (until < want && id + until - 1 < 400 && !steps[static_cast<std::size_t>(id + until - 1)].pruned) ++until;
        if (id + want > 400) continue;
        const bool matters = c.rotate || (c.options.sinks > 0 && !pruned_before);
        ASSERT_EQ(chunk_rows(*policy, want), matters ? until : want) << c.spec << ' ' << id << ' ' << want;
        ASSERT_EQ(chunk_rows(*policy->clone(), want), chunk_rows(*policy, want));
      }
      // What was dropped before this token, and no more, is hidden from it: in a chunk from here on, and alone.
      std::vector<IndexRange> hidden(static_cast<std::size_t>(std::min<TokenIndex>(400 - id, 60)));
      find_hidden(*policy, {.first = id, .rows = static_cast<int>(hidden.size())}, hidden);
      ASSERT_TRUE(hidden.front().empty());
      const std::vector<TokenIndex> held = test::retained_by(*policy);
      for (std::size_t row = 0; row < hidden.size(); ++row) {
        const auto& seen = steps[static_cast<std::size_t>(id) + row].seen;
        ASSERT_EQ(std::ssize(held) + static_cast<TokenIndex>(row) + 1 - hidden[row].size(), std::ssize(seen));
        if (!hidden[row].empty() && id > c.options.sinks) {
          ASSERT_EQ(hidden[row].begin, held[static_cast<std::size_t>(c.options.sinks)]);
        }
      }
      test::end_chunk(*policy, 1);
      ASSERT_EQ(test::retained_by(*policy), steps[static_cast<std::size_t>(id)].kept);
      pruned_before = pruned_before || steps[static_cast<std::size_t>(id)].pruned;
    }
  }
}

TEST(StartRecent, AClonePrunesOnFromWhereItWasTaken) {
  const auto steps = test::simulate({.sinks = 3, .window = 20, .every = 9}, 300);
  const auto policy = test::policy_of("streaming:sinks=3,window=20,every=9");
  for (TokenIndex id = 0; id < 300; ++id) {
    test::end_chunk(*policy, 1);
    if (id % 37 != 0) continue;
    const auto copy = policy->clone();
    EXPECT_EQ(copy->traits().spec, policy->traits().spec);
    for (TokenIndex later = id + 1; later < 300; ++later) {
      test::end_chunk(*copy, 1);
      ASSERT_EQ(test::retained_by(*copy), steps[static_cast<std::size_t>(later)].kept);
    }
    ASSERT_EQ(test::retained_by(*policy), steps[static_cast<std::size_t>(id)].kept);
  }
}

TEST(Full, HidesAndDropsNothing) {
  const auto policy = test::policy_of("full");
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(chunk_rows(*policy, i + 1), i + 1);
    EXPECT_TRUE(test::plan_pass(*policy, 1).hidden.front().empty());
    EXPECT_TRUE(test::end_chunk(*policy, 1).drop.empty());
    EXPECT_EQ(std::ssize(test::retained_by(*policy)), i + 1);
  }
  EXPECT_EQ(policy->clone()->traits().spec, "full");
}

TEST(Full, DropsThoughtsOnceAndRestoresThat) {
  const auto policy = test::policy_of("full:thoughts=drop");
  EXPECT_EQ(test::policy_of("full:thoughts=keep")->traits().spec, "full");
  EXPECT_EQ(test::policy_of("full")->as<DropsThoughts>(), nullptr);
  ASSERT_NE(policy->as<DropsThoughts>(), nullptr);
  for (int i = 0; i < 30; ++i) EXPECT_TRUE(test::end_chunk(*policy, 1).drop.empty());
  const std::vector<std::byte> before = test::saved_state(*policy);
  KeepPlan plan;
  policy->as<DropsThoughts>()->drop_thoughts({10, 25}, plan);
  EXPECT_EQ(plan.drop, (std::vector<IndexRange>{{10, 25}}));
  const auto kept = [](const RetentionPolicy& of) {
    std::vector<IndexRange> ranges;
    of.retained(0, 0, ranges);
    return ranges;
  };
  EXPECT_EQ(kept(*policy), (std::vector<IndexRange>{{0, 10}, {25, 30}}));
  EXPECT_EQ(policy->seen(), 30);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(test::end_chunk(*policy, 1).drop.empty());
  const std::vector<std::byte> after = test::saved_state(*policy);
  for (const std::vector<std::byte>* saved : {&before, &after}) {
    const auto again = test::policy_of("full:thoughts=drop");
    ByteReader reader(*saved);
    ASSERT_TRUE(again->restore(reader).ok());
    EXPECT_EQ(kept(*again), saved == &after ? kept(*policy) : (std::vector<IndexRange>{{0, 30}}));
  }
  EXPECT_EQ(policy->as<JoinsAnother>()->as_part(PolicyPart::kAtPromptEnd).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvasir
