// The view of a pass against its definition, computed key by key.
#include "kv/attention_view.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kv/table.h"
#include "retention/naive.h"

namespace kvasir {
namespace {

// Checks everything a view says about rows, given what each is to see: `visible` [rows], ascending ids.
void check_view(const LaneGroup& group, const AttentionView& view,
                const std::vector<std::vector<TokenIndex>>& visible) {
  const auto rows = static_cast<int>(visible.size());
  ASSERT_EQ(view.rows, rows);
  ASSERT_EQ(view.frames, static_cast<int>(group.frames().size()));
  ASSERT_EQ(view.masks.size(), view.entries() * visible.size());
  ASSERT_EQ(view.query_positions.size(), group.frames().size() * visible.size());

  // Every entry of the table once, in order; partials cut them into runs of one frame and few pages.
  std::vector<int> frame_of_entry;
  std::size_t e = 0;
  for (const LaneGroup::Column* column = group.first_column(); column != nullptr; column = column->next)
    for (int i = 0; i < column->entry_count; ++i, ++e) {
      ASSERT_LT(e, view.entries());
      ASSERT_EQ(view.columns[e], column);
      frame_of_entry.push_back(column->entries[static_cast<std::size_t>(i)].frame);
    }
  ASSERT_EQ(e, view.entries());
  int covered = 0;
  for (const AttentionView::Partial& partial : view.partials) {
    ASSERT_EQ(partial.begin, covered);
    ASSERT_GT(partial.end, partial.begin);
    ASSERT_LE(partial.end - partial.begin, kPartialEntries);
    for (int i = partial.begin; i < partial.end; ++i) {
      ASSERT_EQ(frame_of_entry[static_cast<std::size_t>(i)], partial.frame);
      ASSERT_EQ(view.columns[static_cast<std::size_t>(i)]->ordinal / kPartialEntries,
                view.columns[static_cast<std::size_t>(partial.begin)]->ordinal / kPartialEntries);
    }
    covered = partial.end;
  }
  ASSERT_EQ(static_cast<std::size_t>(covered), view.entries());

  std::map<TokenIndex, test::LiveToken> stored;
  for (const test::LiveToken& token : test::live_tokens(group)) stored[token.id] = token;
  for (int r = 0; r < rows; ++r) {
    const TokenIndex id = group.next_id() - rows + r;
    const std::vector<TokenIndex>& sees = visible[static_cast<std::size_t>(r)];
    SCOPED_TRACE(fmt::format("token {}", id));
    ASSERT_EQ(test::visible_ids(view, r), sees);
    ASSERT_EQ(sees.back(), id);
    // Masks alone would not tell in which frame's entry a slot of a shared column stands.
    for (std::size_t i = 0; i < view.entries(); ++i)
      for (int slot = 0; slot < 64; ++slot)
        if ((view.masks[static_cast<std::size_t>(r) * view.entries() + i] >> slot & 1) != 0) {
          const test::LiveToken& key = stored.at(view.columns[i]->first + slot);
          ASSERT_EQ(key.frame, frame_of_entry[i]);
          // Distance of query and key = tokens this row sees from the key on, itself excluded.
          const auto distance = sees.end() - std::ranges::lower_bound(sees, key.id) - 1;
          const Position key_at = key.id + group.frames()[static_cast<std::size_t>(key.frame)].rotation;
          ASSERT_EQ(view.query_position(key.frame, r) - key_at, distance) << key.id;
        }
    // Where the row's own key goes, and what it is rotated by.
    const AttentionView::RowSlot& place = view.slots[static_cast<std::size_t>(r)];
    ASSERT_NE(place.column, nullptr);
    ASSERT_EQ(place.column->first + place.slot, id);
    ASSERT_LT(place.slot, place.column->used);
    const test::LiveToken& own = stored.at(id);
    ASSERT_EQ(view.key_positions[static_cast<std::size_t>(r)],
              id + group.frames()[static_cast<std::size_t>(own.frame)].rotation);
  }
}

TEST(AttentionView, RandomTablesAndHiddenRanges) {
  std::mt19937_64 random(7);
  const auto draw = [&](TokenIndex low, TokenIndex high) {
    return std::uniform_int_distribution<TokenIndex>(low, high)(random);
  };
  AttentionView view;  // used again and again, as the engine does
  int hidden_in_front = 0, hidden_behind_frames = 0, many_frames = 0;
  for (int round = 0; round < 600; ++round) {
    const int slots = 16 << draw(0, 2);
    const auto cache = test::table_only(slots, 100);
    KvSequence sequence = cache->new_sequence();
    LaneGroup& group = sequence.group();
    const TokenIndex total = draw(1, 700);
    while (group.next_id() < total) {
      ASSERT_TRUE(group.append(static_cast<int>(draw(1, 60))).ok());
      const TokenIndex begin = draw(0, group.next_id());
      // Refusals of tables with too many holes are welcome: they leave tables at their limits.
      (void)group.drop({begin, begin + draw(0, 20)}, draw(0, 1) == 0 ? Realign::kFrames : Realign::kRotate);
      if (draw(0, 9) == 0) {
        ASSERT_TRUE(group.drop({0, draw(0, group.next_id())}, Realign::kFrames).ok());
      }
    }
    const int rows = static_cast<int>(draw(1, 90));
    ASSERT_TRUE(group.append(rows).ok());
    many_frames += group.frames().size() > 4 ? 1 : 0;

    const auto live = test::live_tokens(group);
    std::vector<IndexRange> hidden;
    std::vector<std::vector<TokenIndex>> visible;
    for (int r = 0; r < rows; ++r) {
      const TokenIndex id = group.next_id() - rows + r;
      IndexRange hide;
      if (draw(0, 3) > 0) {
        // Begins at a frame's first token, or in the gap before it, and ends anywhere up to the row.
        const std::size_t i = static_cast<std::size_t>(draw(0, static_cast<TokenIndex>(live.size()) - 1));
        std::size_t first = i;
        while (first > 0 && live[first - 1].frame == live[i].frame) --first;
        const TokenIndex gap = first == 0 ? live[first].id : live[first].id - live[first - 1].id - 1;
        hide.begin = live[first].id - draw(0, gap);
        hide.end = draw(hide.begin, id);
        if (hide.begin > id) hide = {};
      }
      std::vector<TokenIndex> sees;
      for (const test::LiveToken& token : live)
        if (token.id <= id && !(token.id >= hide.begin && token.id < hide.end)) sees.push_back(token.id);
      if (!hide.empty()) ++(sees.front() < hide.begin ? hidden_behind_frames : hidden_in_front);
      hidden.push_back(hide);
      visible.push_back(std::move(sees));
    }
    view.build(group, hidden);
    SCOPED_TRACE(fmt::format("round {}, {} slots, {} rows", round, slots, rows));
    ASSERT_NO_FATAL_FAILURE(check_view(group, view, visible));
  }
  EXPECT_GT(hidden_in_front, 1000);
  EXPECT_GT(hidden_behind_frames, 1000);
  EXPECT_GT(many_frames, 100);
}

// What decides the order of sums: the visible keys of each partial, those without any left out.
using Groups = std::vector<std::vector<TokenIndex>>;

Groups groups_of(const AttentionView& view, int row) {
  Groups groups;
  for (const AttentionView::Partial& partial : view.partials) {
    std::vector<TokenIndex> ids;
    for (int e = partial.begin; e < partial.end; ++e)
      for (int slot = 0; slot < 64; ++slot)
        if ((view.masks[static_cast<std::size_t>(row) * view.entries() + static_cast<std::size_t>(e)] >> slot & 1) != 0)
          ids.push_back(view.columns[static_cast<std::size_t>(e)]->first + slot);
    if (!ids.empty()) groups.push_back(std::move(ids));
  }
  return groups;
}

TEST(AttentionView, PartialsAndDistancesDoNotDependOnTheChunk) {
  struct Case {
    const char* spec;
    test::NaiveOptions options;
  };
  const Case cases[] = {
      {"full", {.every = 0}},
      {"window:size=300", {.window = 300}},
      {"streaming:sinks=4,window=290", {.sinks = 4, .window = 290}},
      {"streaming:sinks=20,window=100,every=37,slack=5", {.sinks = 20, .window = 100, .every = 37, .slack = 5}},
      {"streaming:sinks=4,window=60,every=16,realign=rotate", {.sinks = 4, .window = 60, .every = 16}},
      {"streaming:sinks=0,window=60,every=64,max_drop=3", {.window = 60, .every = 64, .max_drop = 3}},
  };
  constexpr TokenIndex kTokens = 1500;
  for (const Case& c : cases) {
    const auto steps = test::simulate(c.options, kTokens);
    for (const int slots : {16, 32, 64}) {
      std::vector<Groups> expected;
      for (const int chunk : {1, 7, 64, 512}) {
        SCOPED_TRACE(fmt::format("{} slots {} chunk {}", c.spec, slots, chunk));
        const auto policy = test::policy_of(c.spec);
        const auto cache = test::table_only(slots, 200);
        KvSequence sequence = cache->new_sequence();
        AttentionView view;
        std::vector<Groups> groups;
        test::drive(
            *policy, *cache, sequence, kTokens, [&](TokenIndex done) { return chunk - static_cast<int>(done % chunk); },
            [&](const LaneGroup& group, const PassPlan& pass) {
              view.build(group, pass.hidden);
              std::vector<std::vector<TokenIndex>> visible;
              for (int r = 0; r < pass.rows; ++r) {
                visible.push_back(steps[static_cast<std::size_t>(group.next_id() - pass.rows + r)].seen);
                groups.push_back(groups_of(view, r));
              }
              check_view(group, view, visible);
            },
            [](const LaneGroup&, const PassPlan&) {});
        if (HasFatalFailure()) return;
        if (chunk == 1) expected = groups;
        ASSERT_EQ(groups, expected);
      }
    }
  }
}

TEST(AttentionViewDeathTest, AHiddenRangeMayNotReachTheRowItself) {
  const auto cache = test::table_only(16, 10);
  KvSequence sequence = cache->new_sequence();
  ASSERT_TRUE(sequence.group().append(10).ok());
  AttentionView view;
  const IndexRange hidden[] = {{0, 10}};
  EXPECT_DEATH(view.build(sequence.group(), hidden), "internal error");
}

}  // namespace
}  // namespace kvasir
