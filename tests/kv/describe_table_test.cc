// The description of a page table for a pass against its definition, computed key by key.
#include "kv/describe_table.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <random>

#include "kv/batch_rows.h"
#include "kv/table.h"
#include "retention/naive.h"

namespace kvasir {
namespace {

// Checks everything a description says about rows, given what is visible to each but for the window: [rows], ascending
// indices.
void check_description(const PageTable& table, const BatchTable& batch,
                       const std::vector<std::vector<TokenIndex>>& visible, Position window) {
  const auto rows = static_cast<int>(visible.size());
  const std::span<const PageTable::Frame> frames = table.frames();
  ASSERT_EQ(batch.rows, rows);
  ASSERT_EQ(batch.lanes, table.pages().lanes());
  ASSERT_EQ(batch.pages.data(), table.pages().all().data());
  ASSERT_EQ(batch.frames.size(), frames.size());
  ASSERT_EQ(batch.query_positions.size(), frames.size() * visible.size());
  ASSERT_EQ(batch.key_positions.size(), visible.size());
  ASSERT_EQ(batch.slots.size(), visible.size());
  ASSERT_EQ(batch.retained_before, static_cast<std::int64_t>(visible.front().size()) - 1);
  // The arrays of the table are referred to as they are.
  for (std::size_t f = 0; f < frames.size(); ++f) {
    ASSERT_EQ(batch.frames[f].entries.data(), table.entries_of(frames[f]).data());
    ASSERT_EQ(batch.frames[f].entries.size(), table.entries_of(frames[f]).size());
    ASSERT_LE(batch.frames[f].visible_from, batch.frames[f].entries.size());
    ASSERT_TRUE(window > 0 || batch.frames[f].visible_from == 0);
  }
  ASSERT_TRUE(window > 0 || batch.retained_masks.empty());

  test::BatchRows masks;
  ASSERT_NO_FATAL_FAILURE(test::expand(batch, &masks));
  // Every entry of the table once, in order; partials cut them into runs of one frame and few pages.
  std::size_t covered = 0;
  for (const test::BatchRows::Partial& partial : masks.partials) {
    ASSERT_EQ(partial.begin, covered);
    ASSERT_LE(partial.end - partial.begin, static_cast<std::size_t>(kPartialEntries));
    for (std::size_t e = partial.begin; e < partial.end; ++e) {
      ASSERT_EQ(masks.entries[e].frame, masks.entries[partial.begin].frame);
      ASSERT_EQ(masks.entries[e].page.ordinal / kPartialEntries,
                masks.entries[partial.begin].page.ordinal / kPartialEntries);
    }
    covered = partial.end;
  }
  ASSERT_EQ(covered, masks.entries.size());

  std::map<TokenIndex, test::LiveToken> stored;
  for (const test::LiveToken& token : test::live_tokens(table)) stored[token.id] = token;
  for (int r = 0; r < rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    const TokenIndex own_index = table.next_index() - rows + r;
    const std::vector<TokenIndex>& sees = visible[row];
    SCOPED_TRACE(fmt::format("token {}", own_index));
    ASSERT_EQ(sees.back(), own_index);
    ASSERT_EQ(test::indices_in(table, masks, masks.retained[row]), sees);
    // Distance of query and key: tokens this row sees from the key on, itself excluded; or as they stood in the text.
    const auto distance_to = [&](TokenIndex index) -> Position {
      if (table.tokens().original) return own_index - index;
      return sees.end() - std::ranges::lower_bound(sees, index) - 1;
    };
    std::vector<TokenIndex> near;
    for (const TokenIndex index : sees)
      if (window == 0 || distance_to(index) < window) near.push_back(index);
    ASSERT_EQ(test::indices_in(table, masks, masks.attended[row]), near);
    // Masks alone would not tell in which frame's entry a slot of a column of several stands.
    for (std::size_t e = 0; e < masks.entries.size(); ++e)
      for (SlotMask left = masks.retained[row][e]; left != 0; left &= left - 1) {
        const test::BatchRows::Entry& entry = masks.entries[e];
        const int slot = std::countr_zero(left);
        const test::LiveToken& key = stored.at(table.columns().index(entry.page.column, slot));
        ASSERT_EQ(static_cast<std::size_t>(key.frame), entry.frame);
        ASSERT_EQ(key.column, entry.page.column);
        ASSERT_EQ(table.columns()[key.column].ordinal, entry.page.ordinal);
        const Position key_at = table.tokens().stored_rotation(key.column, slot, frames[entry.frame]);
        ASSERT_EQ(batch.query_position(entry.frame, r) - key_at, distance_to(key.id)) << key.id;
      }
    // Where the row's own key goes, and what it is rotated by.
    const WriteSlot& place = batch.slots[row];
    ASSERT_EQ(table.columns().index(place.column, place.slot), own_index);
    ASSERT_LT(place.slot, table.columns()[place.column].used);
    const test::LiveToken& own = stored.at(own_index);
    ASSERT_EQ(own.column, place.column);
    ASSERT_EQ(own.slot, place.slot);
    ASSERT_EQ(batch.key_positions[row],
              table.tokens().stored_rotation(place.column, place.slot, frames[static_cast<std::size_t>(own.frame)]));
  }
}

// A drop of one range; a table with too many holes may refuse it.
Status drop(PageTable& table, IndexRange range, Realign realign = Realign::kFrames) {
  KeepPlan plan;
  plan.drop.push_back(range);
  plan.realign = realign;
  return table.apply(plan);
}

std::vector<std::vector<TokenIndex>> visible_to(const PageTable& table, std::span<const IndexRange> hidden) {
  std::vector<std::vector<TokenIndex>> visible(hidden.size());
  const std::vector<TokenIndex> retained = test::retained_ids(table);
  for (std::size_t r = 0; r < hidden.size(); ++r)
    for (const TokenIndex index : retained)
      if (index <= table.next_index() - static_cast<TokenIndex>(hidden.size() - r) &&
          !(index >= hidden[r].begin && index < hidden[r].end))
        visible[r].push_back(index);
  return visible;
}

class RandomDescriptions : public ::testing::TestWithParam<bool> {};

TEST_P(RandomDescriptions, TablesAndHiddenRanges) {
  const bool windowed = GetParam();
  std::mt19937_64 random(7);
  const auto draw = [&](TokenIndex low, TokenIndex high) {
    return std::uniform_int_distribution<TokenIndex>(low, high)(random);
  };
  std::mt19937_64 random_windows(8);
  BatchTable batch;  // used again and again, as the engine does
  int hidden_in_front = 0, hidden_behind_frames = 0, many_frames = 0, skipped = 0, edges = 0, wide = 0;
  for (int round = 0; round < 600; ++round) {
    const int slots = 16 << draw(0, 2);
    const auto cache = test::table_only(slots, 100);
    KvSequence sequence = cache->new_sequence();
    PageTable& table = sequence.only_table();
    const TokenIndex total = draw(1, 700);
    while (table.next_index() < total) {
      ASSERT_TRUE(table.append(static_cast<int>(draw(1, 60))).ok());
      const TokenIndex begin = draw(0, table.next_index());
      // Refusals of tables with too many holes are welcome: they leave tables at their limits.
      (void)drop(table, {begin, begin + draw(0, 20)}, draw(0, 1) == 0 ? Realign::kFrames : Realign::kRotate);
      if (draw(0, 9) == 0) {
        ASSERT_TRUE(drop(table, {0, draw(0, table.next_index())}).ok());
      }
    }
    const int rows = static_cast<int>(draw(1, 90));
    ASSERT_TRUE(table.append(rows).ok());
    many_frames += table.frames().size() > 4 ? 1 : 0;

    const auto live = test::live_tokens(table);
    std::vector<IndexRange> hidden;
    for (int r = 0; r < rows; ++r) {
      const TokenIndex index = table.next_index() - rows + r;
      IndexRange hide;
      if (draw(0, 3) > 0) {
        // Begins at a frame's first token, or in the gap before it, and ends anywhere up to the row.
        const std::size_t i = static_cast<std::size_t>(draw(0, static_cast<TokenIndex>(live.size()) - 1));
        std::size_t first = i;
        while (first > 0 && live[first - 1].frame == live[i].frame) --first;
        const TokenIndex gap = first == 0 ? live[first].id : live[first].id - live[first - 1].id - 1;
        hide.begin = live[first].id - draw(0, gap);
        hide.end = draw(hide.begin, index);
        if (hide.begin > index) hide = {};
      }
      hidden.push_back(hide);
    }
    const auto visible = visible_to(table, hidden);
    for (std::size_t r = 0; r < hidden.size(); ++r)
      if (!hidden[r].empty()) ++(visible[r].front() < hidden[r].begin ? hidden_behind_frames : hidden_in_front);
    const Position window =
        windowed ? std::uniform_int_distribution<Position>(1, table.length() + 20)(random_windows) : 0;
    describe_table(table, hidden, window, &batch);
    SCOPED_TRACE(fmt::format("round {}, {} slots, {} rows, window {}", round, slots, rows, window));
    ASSERT_NO_FATAL_FAILURE(check_description(table, batch, visible, window));
    for (const BatchFrame& frame : batch.frames) skipped += frame.visible_from > 0 ? 1 : 0;
    edges += batch.masks != batch.retained_masks ? 1 : 0;
    wide += window > table.length() ? 1 : 0;
  }
  EXPECT_GT(hidden_in_front, 1000);
  EXPECT_GT(hidden_behind_frames, 1000);
  EXPECT_GT(many_frames, 100);
  if (windowed) {
    EXPECT_GT(skipped, 500);
    EXPECT_GT(edges, 300);
    EXPECT_GT(wide, 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Windows, RandomDescriptions, ::testing::Values(false, true),
                         [](const auto& windowed) { return windowed.param ? "Window" : "All"; });

// Tables of lists hide nothing; their frames come from holes, or from runs.
TEST(DescribeTable, RandomListsWithAndWithoutWindow) {
  std::mt19937_64 random(9);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  BatchTable batch;
  int many_frames = 0, original = 0, of_runs = 0;
  for (int round = 0; round < 300; ++round) {
    SequenceLayout layout;
    layout.table.lists = true;
    const int kind = draw(0, 2);
    layout.table.original_positions = kind == 0;
    if (kind == 1) layout.table.run_capacities = {40, 40};
    const int slots = 16 << draw(0, 2);
    const KvCacheShape shape{.layers = 2, .kv_heads = 1, .page = {.head_dim = 2, .slots = slots, .key = KvType::kF16}};
    const auto cache = std::move(*KvCache::create(shape, KvCache::cost(shape, layout, 100)));
    KvSequence sequence = cache->new_sequence(layout);
    PageTable& table = sequence.only_table();
    const TokenIndex total = draw(30, 500);
    while (table.next_index() < total) {
      const int tokens_in = draw(1, 30);
      ASSERT_TRUE(table.append(tokens_in).ok());
      KeepPlan plan;
      std::array<int, 3> moved = {};  // out of each run; no more than came in
      std::vector<std::int64_t> held(3);
      std::vector<std::pair<TokenIndex, int>> tokens;  // index, run
      for (const test::LiveToken& token : test::live_tokens(table)) {
        const int run = table.frames()[static_cast<std::size_t>(token.frame)].run;
        tokens.emplace_back(token.id, run);
        ++held[static_cast<std::size_t>(run)];
      }
      std::array<bool, 3> stays = {};  // an older token of the run: rings have no holes
      for (const auto& [index, run] : tokens) {
        const auto r = static_cast<std::size_t>(run);
        if (kind != 1) {
          if (draw(0, 99) < 4) plan.add_drop({index, index + 1});
          continue;
        }
        // Runs 0 and 1 hand on, or drop, the oldest of more than 50, or of 20; the last one drops those of more
        // than 10.
        if (stays[r] || held[r] <= std::array{50, 20, 10}[r]) {
          stays[r] = true;
        } else if (r == 2 || draw(0, 4) == 0) {
          plan.add_drop({index, index + 1});
          --held[r];
        } else if (held[r + 1] < 40 && moved[r] < tokens_in) {
          plan.moves.push_back({index, run + 1});
          ++moved[r];
          --held[r];
          ++held[r + 1];
        } else {
          stays[r] = true;
        }
      }
      ASSERT_TRUE(table.apply(plan).ok());
    }
    const int rows = draw(1, 70);
    ASSERT_TRUE(table.append(rows).ok());
    many_frames += table.frames().size() > 4 ? 1 : 0;
    original += table.tokens().original ? 1 : 0;
    of_runs += std::ranges::any_of(table.frames(), [](const auto& frame) { return frame.run == 2; }) ? 1 : 0;
    const std::vector<IndexRange> hidden(static_cast<std::size_t>(rows));
    for (const Position window : {0, draw(1, static_cast<int>(table.length()) + 10)}) {
      describe_table(table, hidden, window, &batch);
      SCOPED_TRACE(fmt::format("round {}, {} slots, {} rows, window {}, kind {}", round, slots, rows, window, kind));
      ASSERT_NO_FATAL_FAILURE(check_description(table, batch, visible_to(table, hidden), window));
    }
  }
  EXPECT_GT(many_frames, 15);
  EXPECT_GT(original, 50);
  EXPECT_GT(of_runs, 30);
}

// What decides the order of sums: the visible keys of each partial, those without any left out.
using Groups = std::vector<std::vector<TokenIndex>>;

Groups groups_of(const PageTable& table, const test::BatchRows& masks, std::size_t row) {
  Groups groups;
  for (const test::BatchRows::Partial& partial : masks.partials) {
    std::vector<TokenIndex> indices;
    for (std::size_t e = partial.begin; e < partial.end; ++e)
      for (int slot = 0; slot < 64; ++slot)
        if ((masks.attended[row][e] >> slot & 1) != 0)
          indices.push_back(table.columns().index(masks.entries[e].page.column, slot));
    if (!indices.empty()) groups.push_back(std::move(indices));
  }
  return groups;
}

TEST(DescribeTable, PartialsAndDistancesDoNotDependOnTheChunk) {
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
      for (const Position window : {0, 150}) {
        std::vector<Groups> expected;
        for (const int chunk : {1, 7, 64, 512}) {
          SCOPED_TRACE(fmt::format("{} slots {} chunk {} window {}", c.spec, slots, chunk, window));
          const auto policy = test::policy_of(c.spec);
          const auto cache = test::table_only(slots, 200);
          KvSequence sequence = cache->new_sequence();
          BatchTable batch;
          std::vector<Groups> groups;
          test::drive(
              *policy, *cache, sequence, kTokens,
              [&](TokenIndex done) { return chunk - static_cast<int>(done % chunk); },
              [&](const PageTable& table, const test::PassPlan& pass) {
                describe_table(table, pass.hidden, window, &batch);
                test::BatchRows masks;
                test::expand(batch, &masks);
                std::vector<std::vector<TokenIndex>> visible;
                for (int r = 0; r < pass.rows; ++r) {
                  visible.push_back(steps[static_cast<std::size_t>(table.next_index() - pass.rows + r)].seen);
                  groups.push_back(groups_of(table, masks, static_cast<std::size_t>(r)));
                }
                check_description(table, batch, visible, window);
              },
              [](const PageTable&, const test::PassPlan&) {});
          if (HasFatalFailure()) return;
          if (chunk == 1) expected = groups;
          ASSERT_EQ(groups, expected);
        }
      }
    }
  }
}

// Masks exist where rows differ only: at the newest tokens, at the edges of windows and of what is hidden. Whatever a
// table holds, they are no more than a few for each row and page of as many tokens as there are rows.
TEST(DescribeTable, MasksGrowWithRowsAndNotWithTheTable) {
  for (const int slots : {16, 32, 64})
    for (const int rows : {1, 2, 63, 512}) {
      std::vector<std::size_t> sizes;
      for (const TokenIndex held : {2000, 50000}) {
        const auto cache = test::table_only(slots, 52000 / slots);
        KvSequence sequence = cache->new_sequence();
        PageTable& table = sequence.only_table();
        ASSERT_TRUE(table.append(static_cast<int>(held)).ok());
        ASSERT_TRUE(drop(table, {4, 20}).ok());
        ASSERT_TRUE(table.append(rows).ok());
        std::vector<IndexRange> none(static_cast<std::size_t>(rows)), slid(none);
        // Each row hides one more, as a window that slides with every token does.
        for (int r = 0; r < rows; ++r) slid[static_cast<std::size_t>(r)] = {20, 21 + r};
        for (const Position window : {0, 1000})
          for (const auto& hidden : {none, slid}) {
            BatchTable batch;
            describe_table(table, hidden, window, &batch);
            const std::size_t pages = static_cast<std::size_t>(rows / slots) + 2;  // that `rows` tokens touch
            const bool hides = !hidden.front().empty();
            const std::size_t parts = (rows > 1 ? 1u : 0u) + (hides ? 1u : 0u) + (window > 0 ? 2u : 0u);
            EXPECT_LE(batch.masks.size(), static_cast<std::size_t>(rows) * pages * parts)
                << slots << " slots, " << rows << " rows, window " << window;
            if (rows == 1 && !hides && window == 0) {
              EXPECT_EQ(batch.masks.size(), 0u);
            }
            sizes.push_back(batch.masks.size());
            EXPECT_LE(batch.bytes(),
                      2 * (2 * batch.masks.size() * sizeof(SlotMask) + 100 * static_cast<unsigned>(rows) + 1000));
          }
      }
      // Both tables are 16 tokens of 32, so that pages and rows fall the same way.
      ASSERT_EQ(sizes.size(), 8u);
      for (int i = 0; i < 4; ++i)
        EXPECT_LE(sizes[static_cast<std::size_t>(4 + i)],
                  sizes[static_cast<std::size_t>(i)] + 3 * static_cast<std::size_t>(rows));
    }
}

// Rows before a prune see thousands of tokens that those after it do not: masks for the ends of what is hidden alone.
TEST(DescribeTable, MasksDoNotGrowWithWhatIsHidden) {
  constexpr int kRows = 100;
  for (const int slots : {16, 32, 64})
    for (const Position window : {0, 1000, 4500}) {
      std::vector<std::size_t> masks, hidden_blocks;
      for (const TokenIndex pruned : {64, 4032}) {  // whole pages both
        const auto cache = test::table_only(slots, 5000 / slots);
        KvSequence sequence = cache->new_sequence();
        PageTable& table = sequence.only_table();
        ASSERT_TRUE(table.append(4300).ok());
        ASSERT_TRUE(drop(table, {4, 20}).ok());
        ASSERT_TRUE(table.append(kRows).ok());
        // A prune after row 40, and smaller ones after rows 70 and 71.
        std::vector<IndexRange> hidden(kRows);
        for (int r = 40; r < kRows; ++r)
          hidden[static_cast<std::size_t>(r)] = {20, 20 + pruned + (r >= 70 ? 30 : 0) + (r >= 71 ? 9 : 0)};
        BatchTable batch;
        describe_table(table, hidden, window, &batch);
        SCOPED_TRACE(fmt::format("{} slots, window {}, {} pruned", slots, window, pruned));
        ASSERT_NO_FATAL_FAILURE(check_description(table, batch, visible_to(table, hidden), window));
        if (window == 0) {
          const auto pages = static_cast<std::size_t>(kRows / slots + 2 + 40 / slots + 2);
          EXPECT_LE(batch.masks.size(), kRows * pages);
        }
        masks.push_back(batch.masks.size());
        hidden_blocks.push_back(batch.hidden.size());
      }
      if (window == 0) {
        EXPECT_EQ(masks[0], masks[1]);
      }
      EXPECT_EQ(hidden_blocks, (std::vector<std::size_t>{1, 1}));
    }
}

TEST(DescribeTableDeathTest, AHiddenRangeMayNotReachTheRowItself) {
  const auto cache = test::table_only(16, 10);
  KvSequence sequence = cache->new_sequence();
  ASSERT_TRUE(sequence.only_table().append(10).ok());
  BatchTable batch;
  const IndexRange hidden[] = {{0, 10}};
  EXPECT_DEATH(describe_table(sequence.only_table(), hidden, 0, &batch), "internal error");
}

}  // namespace
}  // namespace kvasir
