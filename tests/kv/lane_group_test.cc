// Cases of lane groups by hand; random ones are in tests/property.
#include "kv/lane_group.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kv/kv_cache.h"
#include "kv/table.h"

namespace kvasir {
namespace {

class LaneGroupTest : public ::testing::Test {
 protected:
  LaneGroupTest() {
    const KvCacheShape shape{.layers = 2, .kv_heads = 1, .page = {.head_dim = 2, .slots = 16, .type = KvType::kF32}};
    cache_ = std::move(*KvCache::create(shape, 200 * KvCache::column_cost(shape)));
    sequence_.emplace(cache_->new_sequence());
  }
  LaneGroup& group() { return sequence_->group(); }
  void check() {
    const KvSequence* all[] = {&*sequence_};
    cache_->check_invariants(all);
  }
  Status drop(TokenIndex begin, TokenIndex end, Realign realign = Realign::kFrames) {
    const Status status = group().drop({begin, end}, realign);
    check();
    return status;
  }

  std::unique_ptr<KvCache> cache_;
  std::optional<KvSequence> sequence_;
};

TEST_F(LaneGroupTest, DroppingBehindSinksMakesTwoFrames) {
  ASSERT_TRUE(group().append(40).ok());
  EXPECT_EQ(group().frames().size(), 1u);
  ASSERT_TRUE(drop(4, 10).ok());
  ASSERT_EQ(group().frames().size(), 2u);
  EXPECT_EQ(group().frames()[0].origin, 0);
  EXPECT_EQ(group().frames()[1].origin, -6);
  EXPECT_EQ(group().newest_frame().rotation, 0);
  ASSERT_EQ(group().first_column()->entry_count, 2);  // sinks and window in page 0
  EXPECT_EQ(group().first_column()->entries[0].live, slot_range(0, 4));
  EXPECT_EQ(group().first_column()->entries[1].live, slot_range(10, 16));
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(group().append(1).ok());
    ASSERT_TRUE(drop(4, 11 + i).ok());
    ASSERT_EQ(group().frames().size(), 2u);
    ASSERT_EQ(group().length(), 34);
    ASSERT_LE(group().columns(), 4);
  }
}

TEST_F(LaneGroupTest, WithoutSinksOneFrameIsEnough) {
  for (TokenIndex id = 0; id < 200; ++id) {
    ASSERT_TRUE(group().append(1).ok());
    ASSERT_TRUE(drop(0, id - 9).ok());
    ASSERT_EQ(group().frames().size(), 1u);
  }
  EXPECT_EQ(test::retained_ids(group()).front(), 190);
  EXPECT_EQ(group().length(), 10);
}

TEST_F(LaneGroupTest, RotatingMovesTheRotationAlone) {
  ASSERT_TRUE(group().append(40).ok());
  ASSERT_TRUE(drop(4, 10, Realign::kRotate).ok());
  EXPECT_EQ(group().frames()[0].rotation, 0);
  EXPECT_EQ(group().newest_frame().rotation, -6);
  EXPECT_EQ(group().newest_frame().origin, 0);
}

TEST_F(LaneGroupTest, ADropOfNothingChangesNothing) {
  ASSERT_TRUE(group().append(20).ok());
  ASSERT_TRUE(drop(3, 5).ok());
  const std::string before = test::dump(group());
  ASSERT_TRUE(drop(3, 5).ok());
  ASSERT_TRUE(drop(7, 7).ok());
  ASSERT_TRUE(drop(9, 2).ok());
  ASSERT_TRUE(drop(20, 100).ok());
  EXPECT_EQ(test::dump(group()), before);
}

TEST_F(LaneGroupTest, DroppingEverythingKeepsTheOpenColumnOnly) {
  ASSERT_TRUE(group().append(20).ok());
  ASSERT_TRUE(drop(0, 20).ok());
  EXPECT_EQ(group().length(), 0);
  EXPECT_EQ(group().columns(), 1);
  ASSERT_TRUE(group().append(5).ok());
  check();
  EXPECT_EQ(test::live_tokens(group()).front().id, 20);
  EXPECT_EQ(test::live_tokens(group()).front().position, 0);
  ASSERT_TRUE(group().append(7).ok());
  ASSERT_TRUE(drop(0, 32).ok());
  EXPECT_EQ(group().columns(), 0);
  EXPECT_EQ(cache_->budget().used(), 0u);
  ASSERT_TRUE(group().append(1).ok());
  EXPECT_EQ(group().first_column()->first, 32);
  check();
}

// The open column keeps room for the tokens to come, also when a hole at its end gives them a frame of their own.
TEST_F(LaneGroupTest, HolesAtTheEndOfTheOpenColumnLeaveRoomForMoreTokens) {
  ASSERT_TRUE(group().append(14).ok());
  ASSERT_TRUE(drop(2, 3).ok());
  ASSERT_TRUE(drop(5, 6).ok());
  ASSERT_TRUE(drop(8, 9).ok());
  const std::string before = test::dump(group());
  const Status status = drop(12, 14);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(test::dump(group()), before);
  ASSERT_TRUE(group().append(1).ok());
  check();
}

TEST_F(LaneGroupTest, AHoleBeforeAnOpenEndLeavesRoomForMoreTokens) {
  ASSERT_TRUE(group().append(14).ok());
  ASSERT_TRUE(drop(12, 14).ok());  // tokens to come have an empty frame
  ASSERT_TRUE(drop(2, 3).ok());
  ASSERT_TRUE(drop(5, 6).ok());
  EXPECT_EQ(drop(8, 9).code(), StatusCode::kUnsupported);
  ASSERT_TRUE(group().append(1).ok());
  check();
  EXPECT_EQ(group().first_column()->entry_count, LaneGroup::kMaxColumnEntries);
}

TEST_F(LaneGroupTest, AFullColumnTakesAsManyEntriesAsItHasRoomFor) {
  ASSERT_TRUE(group().append(16).ok());
  ASSERT_TRUE(drop(2, 3).ok());
  ASSERT_TRUE(drop(5, 6).ok());
  ASSERT_TRUE(drop(8, 9).ok());
  ASSERT_TRUE(drop(12, 16).ok());
  EXPECT_EQ(group().first_column()->entry_count, LaneGroup::kMaxColumnEntries);
  EXPECT_EQ(group().frames().size(), 5u);
  ASSERT_TRUE(group().append(1).ok());
  check();
}

TEST_F(LaneGroupTest, FramesEndAtTheLimitAndNotBefore) {
  ASSERT_TRUE(group().append(40 * 16).ok());
  for (int hole = 0; hole < LaneGroup::kMaxFrames - 1; ++hole)
    ASSERT_TRUE(drop(hole * 16 + 4, hole * 16 + 5).ok()) << hole;
  EXPECT_EQ(group().frames().size(), static_cast<std::size_t>(LaneGroup::kMaxFrames));
  const std::string before = test::dump(group());
  EXPECT_EQ(drop(36 * 16 + 4, 36 * 16 + 5).code(), StatusCode::kUnsupported);
  EXPECT_EQ(drop(39 * 16 + 4, 40 * 16).code(), StatusCode::kUnsupported);
  EXPECT_EQ(test::dump(group()), before);
  ASSERT_TRUE(drop(0, 5).ok());  // a frame goes, so another may come
  ASSERT_TRUE(drop(36 * 16 + 4, 36 * 16 + 5).ok());
}

TEST_F(LaneGroupTest, PlanOfAnAppendIsWhatItTakes) {
  for (const int tokens : {1, 14, 1, 1, 15, 16, 17, 100}) {
    const std::uint64_t used = cache_->budget().used();
    const std::uint64_t pages = cache_->pool().in_use();
    const int columns = group().columns();
    const auto plan = group().plan_append(tokens);
    ASSERT_TRUE(group().append(tokens).ok());
    EXPECT_EQ(cache_->budget().used() - used, plan.bytes);
    EXPECT_EQ(cache_->pool().in_use() - pages, plan.pages);
    EXPECT_EQ(group().columns() - columns, plan.columns);
  }
  EXPECT_EQ(group().plan_append(0).bytes, 0u);
}

TEST_F(LaneGroupTest, UnshareOfAForkThatIsAloneCopiesNothing) {
  ASSERT_TRUE(group().append(40).ok());
  const std::uint64_t used = cache_->budget().used();
  {
    auto twin = cache_->fork(*sequence_);
    ASSERT_TRUE(twin.ok());
    ASSERT_TRUE(group().unshare_behind(20).ok());
    EXPECT_EQ(cache_->pool().in_use(), 2u * 5u);  // columns 1 and 2 twice
  }
  EXPECT_EQ(cache_->budget().used(), used);
  ASSERT_TRUE(group().unshare_behind(0).ok());
  EXPECT_EQ(cache_->budget().used(), used);
  EXPECT_EQ(cache_->pool().in_use(), 2u * 3u);
}

}  // namespace
}  // namespace kvasir
