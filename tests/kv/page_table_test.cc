// Cases of page tables by hand; random ones are in tests/property.
#include "kv/page_table.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kv/kv_cache.h"
#include "kv/paged_cache.h"
#include "kv/table.h"

namespace kvasir {
namespace {

class PageTableTest : public ::testing::Test {
 protected:
  PageTableTest() {
    const KvCacheShape shape{.layers = 2, .kv_heads = 1, .page = {.head_dim = 2, .slots = 16, .key = KvType::kF32}};
    cache_ = std::move(*KvCache::create(shape, KvCache::cost(shape, {}, 200)));
    sequence_.emplace(cache_->new_sequence());
  }
  PageTable& table() { return sequence_->only_table(); }
  void check() {
    const KvSequence* all[] = {&*sequence_};
    cache_->check_invariants(all);
  }
  Status drop(TokenIndex begin, TokenIndex end, Realign realign = Realign::kFrames) {
    KeepPlan plan;
    plan.drop.push_back({begin, end});
    plan.realign = realign;
    const Status status = table().apply(plan);
    check();
    return status;
  }

  const PageEntry& entry(std::size_t frame, std::size_t number) {
    return table().entries_of(table().frames()[frame])[number];
  }
  const PageTable::Column& oldest() { return table().columns()[test::columns_of(table()).front()]; }

  std::unique_ptr<KvCache> cache_;
  std::optional<KvSequence> sequence_;
};

TEST_F(PageTableTest, DroppingBehindSinksMakesTwoFrames) {
  ASSERT_TRUE(table().append(40).ok());
  EXPECT_EQ(table().frames().size(), 1u);
  ASSERT_TRUE(drop(4, 10).ok());
  ASSERT_EQ(table().frames().size(), 2u);
  EXPECT_EQ(table().frames()[0].origin, 0);
  EXPECT_EQ(table().frames()[1].origin, -6);
  EXPECT_EQ(table().frames().back().rotation, 0);
  ASSERT_EQ(oldest().entries, 2);  // sinks and window in page 0
  EXPECT_EQ(entry(0, 0).live, slot_range(0, 4));
  EXPECT_EQ(entry(1, 0).live, slot_range(10, 16));
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(table().append(1).ok());
    ASSERT_TRUE(drop(4, 11 + i).ok());
    ASSERT_EQ(table().frames().size(), 2u);
    ASSERT_EQ(table().length(), 34);
    ASSERT_LE(table().columns().count(), 4);
  }
}

TEST_F(PageTableTest, WithoutSinksOneFrameIsEnough) {
  for (TokenIndex id = 0; id < 200; ++id) {
    ASSERT_TRUE(table().append(1).ok());
    ASSERT_TRUE(drop(0, id - 9).ok());
    ASSERT_EQ(table().frames().size(), 1u);
  }
  EXPECT_EQ(test::retained_ids(table()).front(), 190);
  EXPECT_EQ(table().length(), 10);
}

TEST_F(PageTableTest, RotatingMovesTheRotationAlone) {
  ASSERT_TRUE(table().append(40).ok());
  ASSERT_TRUE(drop(4, 10, Realign::kRotate).ok());
  EXPECT_EQ(table().frames()[0].rotation, 0);
  EXPECT_EQ(table().frames().back().rotation, -6);
  EXPECT_EQ(table().frames().back().origin, 0);
}

// Tokens that are taken back leave no trace in either kind of table.
TEST(PageTable, TokensTakenBackLeaveNoTrace) {
  for (const bool lists : {false, true}) {
    for (const char* type : {"f16", "q4", "q4,recent=20"}) {
      SCOPED_TRACE(type);
      const KvCodec codec = parse_codec(type).codec;
      const KvCacheShape shape =
          KvCacheShape{.layers = 1, .kv_heads = 2, .page = {.head_dim = 32, .slots = 16}}.with(codec);
      SequenceLayout layout;
      layout.table.lists = lists;
      const std::uint64_t memory = KvCache::cost(shape, layout, 40);
      const auto drafting = std::move(*KvCache::create(shape, memory)),
                 plain = std::move(*KvCache::create(shape, memory));
      KvSequence drafted = drafting->new_sequence(layout), alone = plain->new_sequence(layout);
      std::uint32_t draw = 7;
      int taken = 0;
      for (int token = 0; token < 300; ++token) {
        draw = draw * 1664525 + 1013904223;
        const int in_column = drafted.room() > 0 ? drafted.room() - 1 : 15;
        const int drafts = drafted.room_to_take_back(std::min(static_cast<int>(draw >> 16) % 9, in_column));
        const int right = drafts > 0 ? static_cast<int>(draw >> 8 & 0xff) % (drafts + 1) : 0;
        ASSERT_TRUE(drafted.append(1 + drafts).ok());
        if (drafts > right) drafted.take_back(drafts - right);
        taken += drafts - right;
        drafted.end_pass();
        for (int i = 0; i <= right; ++i) {
          ASSERT_TRUE(alone.append(1).ok());
          alone.end_pass();
        }
        ASSERT_EQ(test::dump(drafted.only_table()), test::dump(alone.only_table()));
        ASSERT_EQ(test::dump(drafting->pool(), drafting->budget()), test::dump(plain->pool(), plain->budget()));
        const KvSequence* all[] = {&drafted};
        drafting->check_invariants(all);
        if (drafted.next_index() > 500) break;
      }
      EXPECT_GT(taken, 100);
    }
  }
}

// Tokens taken back give back the columns that they began; only the arrays may stay longer.
TEST(PageTable, TokensTakenBackGiveTheirColumnsBack) {
  for (const bool lists : {false, true}) {
    const KvCacheShape shape{.layers = 1, .kv_heads = 2, .page = {.head_dim = 32, .slots = 16}};
    SequenceLayout layout;
    layout.table.lists = lists;
    const std::uint64_t memory = KvCache::cost(shape, layout, 60);
    const auto drafting = std::move(*KvCache::create(shape, memory)),
               plain = std::move(*KvCache::create(shape, memory));
    KvSequence drafted = drafting->new_sequence(layout), alone = plain->new_sequence(layout);
    ASSERT_TRUE(drafted.may_take_back_columns());
    std::uint32_t draw = 3;
    int given_back = 0;
    for (int pass = 0; pass < 100; ++pass) {
      draw = draw * 1664525 + 1013904223;
      const int drafts = static_cast<int>(draw >> 16) % 40;
      const int right = drafts > 0 ? static_cast<int>(draw >> 8 & 0xff) % std::min(drafts + 1, 10) : 0;
      // One by one, as a model drafts, or together.
      if (draw >> 31 != 0) {
        for (int i = 0; i <= drafts; ++i) ASSERT_TRUE(drafted.append(1).ok());
      } else {
        ASSERT_TRUE(drafted.append(1 + drafts).ok());
      }
      const std::uint64_t before = drafting->pool().in_use();
      drafted.take_back(drafts - right);
      given_back += before > drafting->pool().in_use() ? 1 : 0;
      ASSERT_TRUE(alone.append(1 + right).ok());
      ASSERT_EQ(test::retained_ids(drafted.only_table()), test::retained_ids(alone.only_table()));
      ASSERT_EQ(drafting->pool().in_use(), plain->pool().in_use());
      const KvSequence* all[] = {&drafted};
      drafting->check_invariants(all);
      if (alone.next_index() > 800) break;
    }
    EXPECT_GT(given_back, 20);
  }
}

TEST_F(PageTableTest, ADropOfNothingChangesNothing) {
  ASSERT_TRUE(table().append(20).ok());
  ASSERT_TRUE(drop(3, 5).ok());
  const std::string before = test::dump(table());
  ASSERT_TRUE(drop(3, 5).ok());
  ASSERT_TRUE(drop(7, 7).ok());
  ASSERT_TRUE(drop(9, 2).ok());
  ASSERT_TRUE(drop(20, 100).ok());
  EXPECT_EQ(test::dump(table()), before);
}

TEST_F(PageTableTest, DroppingEverythingKeepsTheOpenColumnOnly) {
  ASSERT_TRUE(table().append(20).ok());
  ASSERT_TRUE(drop(0, 20).ok());
  EXPECT_EQ(table().length(), 0);
  EXPECT_EQ(table().columns().count(), 1);
  ASSERT_TRUE(table().append(5).ok());
  check();
  EXPECT_EQ(test::live_tokens(table()).front().id, 20);
  EXPECT_EQ(test::live_tokens(table()).front().position, 0);
  ASSERT_TRUE(table().append(7).ok());
  ASSERT_TRUE(drop(0, 32).ok());
  EXPECT_EQ(table().columns().count(), 0);
  // The arrays stay, as large as the two columns there once were asked for.
  EXPECT_EQ(cache_->pool().in_use(), 0u);
  EXPECT_EQ(cache_->budget().used(), TableMemory::bytes_at(2, 16, {}, 2));
  ASSERT_TRUE(table().append(1).ok());
  EXPECT_EQ(oldest().first, 32);
  check();
}

// The open column keeps room for the tokens to come, also when a hole at its end gives them a frame of their own.
TEST_F(PageTableTest, HolesAtTheEndOfTheOpenColumnLeaveRoomForMoreTokens) {
  ASSERT_TRUE(table().append(14).ok());
  ASSERT_TRUE(drop(2, 3).ok());
  ASSERT_TRUE(drop(5, 6).ok());
  ASSERT_TRUE(drop(8, 9).ok());
  const std::string before = test::dump(table());
  const Status status = drop(12, 14);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(test::dump(table()), before);
  ASSERT_TRUE(table().append(1).ok());
  check();
}

TEST_F(PageTableTest, AHoleBeforeAnOpenEndLeavesRoomForMoreTokens) {
  ASSERT_TRUE(table().append(14).ok());
  ASSERT_TRUE(drop(12, 14).ok());  // tokens to come have an empty frame
  ASSERT_TRUE(drop(2, 3).ok());
  ASSERT_TRUE(drop(5, 6).ok());
  EXPECT_EQ(drop(8, 9).code(), StatusCode::kUnsupported);
  ASSERT_TRUE(table().append(1).ok());
  check();
  EXPECT_EQ(oldest().entries, PageTableLayout::kMaxColumnEntries);
}

TEST_F(PageTableTest, AFullColumnTakesAsManyEntriesAsItHasRoomFor) {
  ASSERT_TRUE(table().append(16).ok());
  ASSERT_TRUE(drop(2, 3).ok());
  ASSERT_TRUE(drop(5, 6).ok());
  ASSERT_TRUE(drop(8, 9).ok());
  ASSERT_TRUE(drop(12, 16).ok());
  EXPECT_EQ(oldest().entries, PageTableLayout::kMaxColumnEntries);
  EXPECT_EQ(table().frames().size(), 5u);
  ASSERT_TRUE(table().append(1).ok());
  check();
}

TEST_F(PageTableTest, FramesEndAtTheLimitAndNotBefore) {
  ASSERT_TRUE(table().append(40 * 16).ok());
  for (int hole = 0; hole < PageTableLayout::kMaxFrames - 1; ++hole)
    ASSERT_TRUE(drop(hole * 16 + 4, hole * 16 + 5).ok()) << hole;
  EXPECT_EQ(table().frames().size(), static_cast<std::size_t>(PageTableLayout::kMaxFrames));
  const std::string before = test::dump(table());
  EXPECT_EQ(drop(36 * 16 + 4, 36 * 16 + 5).code(), StatusCode::kUnsupported);
  EXPECT_EQ(drop(39 * 16 + 4, 40 * 16).code(), StatusCode::kUnsupported);
  EXPECT_EQ(test::dump(table()), before);
  ASSERT_TRUE(drop(0, 5).ok());  // a frame goes, so another may come
  ASSERT_TRUE(drop(36 * 16 + 4, 36 * 16 + 5).ok());
}

TEST_F(PageTableTest, PlanOfAnAppendIsWhatItTakes) {
  for (const int tokens : {1, 14, 1, 1, 15, 16, 17, 100}) {
    const std::uint64_t used = cache_->budget().used();
    const std::uint64_t pages = cache_->pool().in_use();
    const int columns = table().columns().count();
    const auto plan = table().memory().plan_append(tokens);
    ASSERT_TRUE(table().append(tokens).ok());
    EXPECT_EQ(cache_->budget().used() - used, plan.bytes);
    EXPECT_EQ(cache_->pool().in_use() - pages, plan.pages);
    EXPECT_EQ(table().columns().count() - columns, plan.columns);
  }
  EXPECT_EQ(table().memory().plan_append(0).bytes, 0u);
}

TEST_F(PageTableTest, UnshareOfAForkThatIsAloneCopiesNothing) {
  ASSERT_TRUE(table().append(40).ok());
  const std::uint64_t used = cache_->budget().used();
  {
    auto twin = cache_->fork(*sequence_);
    ASSERT_TRUE(twin.ok());
    ASSERT_TRUE(table().unshare({20, 40}).ok());
    EXPECT_EQ(cache_->pool().in_use(), 2u * 5u);  // columns 1 and 2 twice
  }
  EXPECT_EQ(cache_->budget().used(), used);
  ASSERT_TRUE(table().unshare({0, 40}).ok());
  EXPECT_EQ(cache_->budget().used(), used);
  EXPECT_EQ(cache_->pool().in_use(), 2u * 3u);
}

TEST_F(PageTableTest, ChargesNothingBeforeTheFirstTokenAndNeverLess) {
  EXPECT_EQ(cache_->budget().used(), 0u);
  EXPECT_EQ(table().bytes(), 0u);
  std::uint64_t most = 0;
  for (int round = 1; round <= 12; ++round) {
    ASSERT_TRUE(table().append(16 * round).ok());
    EXPECT_EQ(table().bytes(), TableMemory::bytes_at(2, 16, {}, table().columns().count()));
    EXPECT_GE(table().bytes(), most);
    most = table().bytes();
    ASSERT_TRUE(drop(0, table().next_index()).ok());
    EXPECT_EQ(table().columns().count(), 0);
    EXPECT_EQ(table().bytes(), most);
  }
  sequence_.reset();
  EXPECT_EQ(cache_->budget().used(), 0u);
}

// Entries in front of a frame that moved on are closed up when their array is full; a hole may need that too.
TEST_F(PageTableTest, HolesFindRoomBehindDroppedEntries) {
  for (int offset = 0; offset < 80; ++offset) {
    sequence_.emplace(cache_->new_sequence());
    ASSERT_TRUE(table().append(64).ok());
    for (int i = 0; i < offset; ++i) {
      ASSERT_TRUE(table().append(16).ok());
      ASSERT_TRUE(drop(0, (i + 1) * 16).ok());
    }
    const TokenIndex begin = table().next_index() - 24;
    const std::int64_t length = table().length();
    ASSERT_TRUE(drop(begin, begin + 2).ok()) << offset;
    EXPECT_EQ(table().length(), length - 2);
    EXPECT_EQ(table().frames().size(), 2u);
    ASSERT_TRUE(drop(begin - 16, begin - 12).ok()) << offset;
    EXPECT_EQ(table().frames().size(), 3u);
    ASSERT_TRUE(table().append(40).ok());
    check();
  }
}

TEST_F(PageTableTest, MaskingInAForkCopiesNothing) {
  ASSERT_TRUE(table().append(40).ok());
  auto twin = cache_->fork(*sequence_);
  ASSERT_TRUE(twin.ok());
  const std::string trunk = test::dump(table());
  KeepPlan plan;
  plan.drop.push_back({4, 20});
  ASSERT_TRUE(twin->only_table().apply(plan).ok());
  EXPECT_EQ(test::dump(table()), trunk);
  EXPECT_EQ(cache_->pool().in_use(), 2u * 3u);
  EXPECT_EQ(twin->only_table().pages().pages_copied(), 0u);
  ASSERT_TRUE(twin->only_table().append(1).ok());  // writes to the open column, which is shared
  EXPECT_EQ(twin->only_table().pages().pages_copied(), 2u);
  EXPECT_EQ(cache_->pool().in_use(), 2u * 4u);
  EXPECT_EQ(test::dump(table()), trunk);
}

TEST(PageTableDeathTest, KeysOfSharedPagesAreNotRotated) {
  const KvCacheShape shape{.layers = 2, .kv_heads = 1, .page = {.head_dim = 2, .slots = 16, .key = KvType::kF32}};
  const test::PagedCache cache(shape, KvCache::cost(shape, {}, 20));
  KvSequence trunk = cache->new_sequence();
  ASSERT_TRUE(trunk.append(20).ok());
  auto twin = cache->fork(trunk);
  ASSERT_TRUE(twin.ok());
  KeepPlan plan;
  plan.drop.push_back({4, 10});
  plan.realign = Realign::kRotate;
  EXPECT_DEATH((void)twin->only_table().apply(plan), "internal error");
  ASSERT_TRUE(twin->only_table().unshare({10, 20}).ok());
  EXPECT_TRUE(twin->only_table().apply(plan).ok());
}

// A table of lists writes what it compacts, and nothing in front of it.
TEST(PageTableLists, CompactingAForkCopiesThePagesItWrites) {
  const KvCacheShape shape{.layers = 2, .kv_heads = 1, .page = {.head_dim = 2, .slots = 16, .key = KvType::kF32}};
  SequenceLayout layout;
  layout.table.lists = true;
  const auto cache = std::move(*KvCache::create(shape, KvCache::cost(shape, layout, 200)));
  KvSequence trunk = cache->new_sequence(layout);
  ASSERT_TRUE(trunk.append(5 * 16).ok());
  EXPECT_EQ(trunk.only_table().memory().sharing_reserve(), 0u);
  auto fork = cache->fork(trunk);
  ASSERT_TRUE(fork.ok());
  PageTable& table = fork->only_table();
  const std::uint64_t column = 2 * cache->pool().page_cost();
  EXPECT_EQ(table.memory().sharing_reserve(), 5 * column);
  EXPECT_EQ(trunk.only_table().memory().sharing_reserve(), 5 * column);
  const std::string before = test::dump(trunk.only_table());

  // One token in 20 leaves: masked.
  KeepPlan plan;
  plan.drop = {{40, 41}, {60, 61}};
  ASSERT_TRUE(table.apply(plan).ok());
  EXPECT_EQ(table.tokens().dead_slots(), 2);
  EXPECT_EQ(fork->only_table().pages().pages_copied(), 0u);
  EXPECT_EQ(cache->pool().in_use(), 2u * 5u);

  // Columns 0 and 1 stay as they are, and shared; what is left of column 4 joins what is left of column 2.
  plan.drop = {{34, 40}, {41, 60}, {61, 67}};
  ASSERT_TRUE(table.apply(plan).ok());
  EXPECT_EQ(table.length(), 47);
  EXPECT_EQ(table.tokens().dead_slots(), 0);
  EXPECT_EQ(table.columns().count(), 3);
  EXPECT_EQ(fork->only_table().pages().pages_copied(), 2u);
  EXPECT_EQ(cache->pool().in_use(), 2u * 6u);
  EXPECT_EQ(table.memory().sharing_reserve(), 2 * column);
  EXPECT_EQ(test::dump(trunk.only_table()), before);
  const KvSequence* all[] = {&trunk, &*fork};
  cache->check_invariants(all);

  ASSERT_TRUE(trunk.append(1).ok());
  EXPECT_EQ(trunk.only_table().memory().sharing_reserve(), 2 * column);
  trunk = cache->new_sequence(layout);
  EXPECT_EQ(table.memory().sharing_reserve(), 0u);
}

}  // namespace
}  // namespace kvasir
