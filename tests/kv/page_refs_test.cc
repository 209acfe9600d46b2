#include "kv/page_refs.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

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

// [columns][lanes]: a lane's pages follow each other over four columns, also of pages that came free in pieces.
TEST(PageRefsColumns, PagesOfALaneFollowEachOther) {
  constexpr PageFormat kFormat{.head_dim = 4, .slots = 16};
  constexpr std::size_t kLanes = 3;
  constexpr std::size_t kColumns = 10;
  MemoryBudget budget(1000 * (kFormat.bytes() + PagePool::kPageOverhead));
  const auto pool = std::move(*PagePool::create(kFormat, &budget, nullptr));
  PageRefs refs(pool.get());
  ASSERT_TRUE(refs.try_allocate(1));
  ASSERT_TRUE(refs.try_allocate_columns(kColumns, kLanes));
  const auto page = [&](std::size_t column, std::size_t lane) {
    return static_cast<std::uint32_t>(refs.ids()[1 + column * kLanes + lane]);
  };
  for (std::size_t lane = 0; lane < kLanes; ++lane)
    for (std::size_t column = 1; column < kColumns; ++column)
      if (column % 4 != 0) {
        EXPECT_EQ(page(column, lane), page(column - 1, lane) + 1) << column << " " << lane;
      }
  const std::size_t all = 1 + kColumns * kLanes;
  for (std::size_t i = 0; i < all; i += 2) refs.reset(i, 1);
  PageRefs again(pool.get());
  ASSERT_TRUE(again.try_allocate_columns(kColumns, kLanes));
  std::set<PageId> ids(again.ids().begin(), again.ids().end());
  for (std::size_t i = 1; i < all; i += 2) ids.insert(refs.ids()[i]);
  EXPECT_EQ(ids.size(), kColumns * kLanes + all / 2);
  EXPECT_EQ(pool->in_use(), ids.size());
  for (std::size_t lane = 0; lane < kLanes; ++lane)
    for (std::size_t column = 1; column < kColumns; ++column)
      if (column % 4 != 0) {
        EXPECT_LT(again.ids()[(column - 1) * kLanes + lane], again.ids()[column * kLanes + lane]);
      }
  EXPECT_FALSE(again.try_allocate_columns(1000, kLanes));
  EXPECT_EQ(again.size(), kColumns * kLanes);
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

// Against counts over all references, after each of many random changes.
TEST_F(PageRefsTest, CountsPagesThatCachesHold) {
  MemoryBudget budget(64 * (kFormat.bytes() + PagePool::kPageOverhead));
  const auto pool = std::move(*PagePool::create(kFormat, &budget, nullptr));
  std::mt19937_64 random(1);
  std::vector<PageRefs> all;
  std::vector<bool> cached;
  bool both = false;
  for (int i = 0; i < 3000; ++i) {
    const std::size_t which = all.empty() ? 0 : random() % all.size();
    switch (random() % 6) {
      case 0:
        if (all.size() > 8) break;
        all.emplace_back(pool.get());
        cached.push_back(random() % 2 == 0);
        if (cached.back()) all.back().mark_cached();
        static_cast<void>(all.back().try_allocate(random() % 8));
        break;
      case 1:
        if (all.empty() || all.size() > 8) break;
        all.emplace_back(pool.get());
        all.back().share(all[which]);
        cached.push_back(false);
        break;
      case 2:
        if (all.empty() || cached[which]) break;
        all[which].mark_cached();
        cached[which] = true;
        break;
      case 3:
        if (all.empty() || all[which].size() == 0) break;
        all[which].reset(random() % all[which].size(), 1);
        break;
      case 4: {
        if (all.empty()) break;
        PageRefs fresh(pool.get());
        if (fresh.try_allocate(2)) all[which].take(all[which].size(), fresh, 0, 2);
        break;
      }
      default:
        if (all.empty() || random() % 2 == 0) break;
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(which));
        cached.erase(cached.begin() + static_cast<std::ptrdiff_t>(which));
    }
    std::map<PageId, std::pair<int, int>> references;  // those of caches, and the others
    for (std::size_t each = 0; each < all.size(); ++each)
      for (const PageId page : all[each].ids())
        if (page != PageId{0xffffffff}) ++(cached[each] ? references[page].first : references[page].second);
    std::uint64_t held = 0, only = 0;
    for (const auto& [page, counts] : references) {
      EXPECT_EQ(pool->cached_references(page), static_cast<std::uint32_t>(counts.first));
      held += counts.first > 0 ? 1 : 0;
      only += counts.first > 0 && counts.second == 0 ? 1 : 0;
      both = both || counts.first > 1;
    }
    ASSERT_EQ(pool->cached().pages, held);
    ASSERT_EQ(pool->cached().only_pages, only);
    pool->check_invariants();
  }
  EXPECT_TRUE(both);
  all.clear();
  EXPECT_EQ(pool->cached().pages, 0u);
  EXPECT_EQ(pool->cached().only_pages, 0u);
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
