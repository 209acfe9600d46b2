#include "kv/page_refs.h"

#include <gtest/gtest.h>

#include "kv/page_pool.h"

namespace kvasir {
namespace {

class PageRefsTest : public ::testing::Test {
 protected:
  static constexpr PageFormat kFormat{.head_dim = 4, .slots = 16};
  MemoryBudget budget_{4 * (kFormat.bytes() + PagePool::kPageOverhead)};
  std::unique_ptr<PagePool> pool_ = std::move(*PagePool::create(kFormat, &budget_, nullptr));
};

TEST_F(PageRefsTest, GivesBackWithTheObject) {
  {
    PageRefs refs(pool_.get());
    ASSERT_TRUE(refs.try_allocate(3));
    EXPECT_EQ(refs.size(), 3u);
    EXPECT_EQ(pool_->in_use(), 3u);
    EXPECT_FALSE(refs.try_allocate(2)) << "there is one left";
    EXPECT_EQ(refs.size(), 3u);
    PageRefs moved = std::move(refs);
    EXPECT_EQ(pool_->in_use(), 3u);
  }
  EXPECT_EQ(pool_->in_use(), 0u);
  EXPECT_EQ(budget_.used(), 0u);
}

TEST_F(PageRefsTest, SharedPagesLiveUntilTheLastReference) {
  PageRefs second(pool_.get());
  PageId page{};
  {
    PageRefs first(pool_.get());
    ASSERT_TRUE(first.try_allocate(2));
    page = first.ids()[1];
    first.reset(0, 1);
    second.share(first);  // an empty reference and one to a page
    EXPECT_EQ(second.size(), 2u);
    EXPECT_EQ(pool_->references(page), 2u);
  }
  EXPECT_EQ(pool_->references(page), 1u);
  EXPECT_EQ(pool_->in_use(), 1u);
  second.reset(0, 2);
  EXPECT_EQ(pool_->in_use(), 0u);
}

// Each knows how many of its pages others share, though they come and go without telling it.
TEST_F(PageRefsTest, CountsPagesSharedWithOthers) {
  PageRefs first(pool_.get()), taker(pool_.get());
  ASSERT_TRUE(first.try_allocate(3));
  EXPECT_EQ(first.shared(), 0u);
  {
    PageRefs second(pool_.get());
    second.share(first);
    EXPECT_EQ(first.shared(), 3u);
    EXPECT_EQ(second.shared(), 3u);
    PageRefs third(pool_.get());
    third.share(second);
    second.reset(0, 1);
    EXPECT_EQ(first.shared(), 3u) << "the third one refers to page 0 yet";
    EXPECT_EQ(second.shared(), 2u);
    third.reset(0, 2);
    EXPECT_EQ(first.shared(), 2u) << "page 0 is its own again";
    EXPECT_EQ(second.shared(), 2u);
    EXPECT_EQ(third.shared(), 1u);
    first.reset(2, 1);
    taker.take(0, third, 2, 1);
    EXPECT_EQ(third.shared(), 0u);
    EXPECT_EQ(taker.shared(), 1u);
    EXPECT_EQ(first.shared(), 1u);
    const PageRefs moved = std::move(second);
    EXPECT_EQ(moved.shared(), 2u);
  }
  EXPECT_EQ(first.shared(), 0u);
  EXPECT_EQ(taker.shared(), 0u);
  PageRefs later(pool_.get());  // with the number of an owner that is gone
  EXPECT_EQ(later.shared(), 0u);
  later.share(taker);
  EXPECT_EQ(taker.shared(), 1u);
  EXPECT_EQ(first.shared(), 0u);
  pool_->check_invariants();
}

TEST_F(PageRefsTest, TakenReferencesReplaceOthers) {
  PageRefs table(pool_.get()), fresh(pool_.get());
  ASSERT_TRUE(table.try_allocate(2) && fresh.try_allocate(2));
  const PageId old = table.ids()[1], kept = fresh.ids()[1], appended = fresh.ids()[0];
  table.take(1, fresh, 1, 1);
  EXPECT_EQ(table.ids()[1], kept);
  EXPECT_EQ(pool_->references(old), 0u);
  table.take(2, fresh, 0, 1);  // behind the last
  EXPECT_EQ(table.size(), 3u);
  EXPECT_EQ(table.ids()[2], appended);
  fresh.reset(0, 2);  // they are empty now
  EXPECT_EQ(pool_->in_use(), 3u);
  EXPECT_EQ(pool_->references(kept), 1u);
  pool_->check_invariants();
}

}  // namespace
}  // namespace kvasir
