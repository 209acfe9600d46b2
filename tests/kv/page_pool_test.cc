#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/cpu_page_store.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/page_layout.h"
#include "kv/kv_cache.h"
#include "kv/table.h"

namespace kvasir {
namespace {

constexpr PageFormat kShape{.head_dim = 4, .slots = 16, .key = KvType::kF16};
constexpr std::uint64_t kCost =
    2 * 4 * 16 * 2 + 12;  // keys and values, two reference counts and place in the free list

std::unique_ptr<PagePool> make_pool(MemoryBudget* budget, PageStore* store = nullptr) {
  auto pool = PagePool::create(kShape, budget, store);
  EXPECT_TRUE(pool.ok()) << pool.status().message();
  return std::move(*pool);
}

class PagesTest : public ::testing::Test {
 protected:
  PagesTest() : budget_(8 * kCost), pool_(make_pool(&budget_, &store_)) {}

  bool is_zero(PageId page) const {
    const std::byte* data = store_.data(page);
    return std::all_of(data, data + kShape.bytes(), [](std::byte b) { return b == std::byte{0}; });
  }

  ThreadPool threads_{1};
  CpuPageStore store_{&generic_kernels(), &threads_, {1.0, 0.1}};
  MemoryBudget budget_;
  std::unique_ptr<PagePool> pool_;
};

TEST(PageFormat, BytesFollowTheFormula) {
  for (const int slots : {16, 32, 64})
    for (const int head_dim : {2, 64, 80, 128})
      for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
        const PageFormat shape{.head_dim = head_dim, .slots = slots, .key = type};
        EXPECT_EQ(shape.bytes(), 2u * head_dim * slots * (type == KvType::kF32 ? 4 : 2));
        EXPECT_EQ(values_offset(shape) * 2, shape.bytes());
      }
}

TEST(SlotRange, IsTheBitsOfTheRange) {
  for (int begin = 0; begin <= 64; ++begin)
    for (int end = begin; end <= 64; ++end) {
      SlotMask expected = 0;
      for (int s = begin; s < end; ++s) expected |= SlotMask{1} << s;
      ASSERT_EQ(slot_range(begin, end), expected) << begin << ' ' << end;
    }
}

TEST(MemoryBudget, ChargesToTheLastByteAndNotBeyond) {
  MemoryBudget budget(100);
  EXPECT_TRUE(budget.try_charge(60));
  EXPECT_FALSE(budget.try_charge(41));
  EXPECT_EQ(budget.used(), 60u);
  EXPECT_EQ(budget.peak(), 60u);
  EXPECT_TRUE(budget.try_charge(40));
  EXPECT_TRUE(budget.try_charge(0));
  EXPECT_FALSE(budget.try_charge(1));
  EXPECT_FALSE(budget.try_charge(~std::uint64_t{0}));
  budget.release(70);
  EXPECT_EQ(budget.used(), 30u);
  EXPECT_EQ(budget.available(), 70u);
  EXPECT_EQ(budget.peak(), 100u);
}

TEST(PagePool, HoldsAsManyPagesAsTheBudgetPaysFor) {
  for (std::uint64_t pages = 1; pages <= 40; ++pages)
    for (const bool short_by_one : {false, true}) {
      MemoryBudget budget(pages * kCost - (short_by_one ? 1 : 0));
      const std::uint64_t fit = pages - (short_by_one ? 1 : 0);
      if (fit == 0) {
        const auto refused = PagePool::create(kShape, &budget, nullptr);
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
        continue;
      }
      const auto pool = make_pool(&budget);
      EXPECT_EQ(pool->capacity(), fit);
      std::vector<PageId> held;
      for (std::uint64_t i = 0; i < fit; ++i) {
        PageId page{};
        ASSERT_TRUE(pool->try_allocate({&page, 1}));
        held.push_back(page);
        ASSERT_EQ(budget.used(), (i + 1) * kCost);
      }
      PageId page{};
      EXPECT_FALSE(pool->try_allocate({&page, 1}));
      EXPECT_EQ(budget.used(), fit * kCost);
      for (const PageId p : held) pool->release(p);
      EXPECT_EQ(budget.used(), 0u);
      pool->check_invariants();
    }
}

TEST(PagePool, AllocatesAllOrNothing) {
  for (std::uint64_t free = 0; free < 12; ++free) {
    MemoryBudget budget(12 * kCost);
    const auto pool = make_pool(&budget);
    std::vector<PageId> held(12 - free);
    ASSERT_TRUE(pool->try_allocate(held));
    const std::string before = test::dump(*pool, budget);
    for (std::uint64_t more = free + 1; more <= 14; ++more) {
      std::vector<PageId> wanted(more);
      ASSERT_FALSE(pool->try_allocate(wanted));
      ASSERT_EQ(test::dump(*pool, budget), before);
      pool->check_invariants();
    }
    std::vector<PageId> rest(free);
    EXPECT_TRUE(pool->try_allocate(rest));
    EXPECT_EQ(pool->in_use(), 12u);
  }
}

TEST(PagePool, OtherChargesOfTheBudgetLeaveLessForPages) {
  MemoryBudget budget(4 * kCost);
  const auto pool = make_pool(&budget);
  ASSERT_TRUE(budget.try_charge(1));
  std::vector<PageId> four(4), three(3);
  EXPECT_FALSE(pool->try_allocate(four));
  EXPECT_EQ(pool->in_use(), 0u);
  EXPECT_TRUE(pool->try_allocate(three));
  budget.release(1);
  PageId page{};
  EXPECT_TRUE(pool->try_allocate({&page, 1}));
}

TEST(PagePool, APageReturnsWithItsLastReference) {
  MemoryBudget budget(3 * kCost);
  const auto pool = make_pool(&budget);
  std::vector<PageId> pages(3);
  ASSERT_TRUE(pool->try_allocate(pages));
  pool->retain(pages[1]);
  pool->retain(pages[1]);
  EXPECT_EQ(pool->references(pages[1]), 3u);
  PageId other{};
  for (int i = 0; i < 2; ++i) {
    pool->release(pages[1]);
    EXPECT_EQ(pool->in_use(), 3u);
    EXPECT_FALSE(pool->try_allocate({&other, 1}));
  }
  pool->release(pages[1]);
  EXPECT_EQ(pool->in_use(), 2u);
  EXPECT_EQ(pool->references(pages[1]), 0u);
  EXPECT_EQ(budget.used(), 2 * kCost);
  ASSERT_TRUE(pool->try_allocate({&other, 1}));
  EXPECT_EQ(other, pages[1]);
  EXPECT_EQ(pool->peak(), 3u);
  pool->check_invariants();
}

TEST_F(PagesTest, FreshAndRecycledOnesAreZero) {
  for (int round = 0; round < 3; ++round) {
    std::vector<PageId> pages(5 + static_cast<std::size_t>(round));
    ASSERT_TRUE(pool_->try_allocate(pages));
    for (const PageId page : pages) {
      EXPECT_TRUE(is_zero(page));
      std::memset(store_.data(page), 0xff, kShape.bytes());
    }
    for (const PageId page : pages) pool_->release(page);
  }
}

TEST_F(PagesTest, DoNotOverlap) {
  std::vector<PageId> pages(8);
  ASSERT_TRUE(pool_->try_allocate(pages));
  for (std::size_t i = 0; i < pages.size(); ++i)
    std::memset(store_.data(pages[i]), static_cast<int>(i + 1), kShape.bytes());
  for (std::size_t i = 0; i < pages.size(); ++i)
    for (std::size_t b = 0; b < kShape.bytes(); ++b) ASSERT_EQ(store_.data(pages[i])[b], static_cast<std::byte>(i + 1));
}

TEST_F(PagesTest, AreReadAndWrittenWhole) {
  std::vector<PageId> pages(2);
  ASSERT_TRUE(pool_->try_allocate(pages));
  std::vector<std::byte> in(kShape.bytes()), out(kShape.bytes());
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i * 7 + 1);
  store_.write(pages[1], in);
  store_.read(pages[1], out);
  EXPECT_EQ(out, in);
  EXPECT_TRUE(is_zero(pages[0]));
  store_.copy(std::span(pages).subspan(1), std::span(pages).first(1));
  store_.clear(std::span(pages).subspan(1));
  store_.read(pages[0], out);
  EXPECT_EQ(out, in);
  EXPECT_TRUE(is_zero(pages[1]));
}

TEST(PagePool, WithoutAStoreCountsTheSame) {
  MemoryBudget budget(std::uint64_t{1} << 40);  // far more than any machine of today holds
  const auto pool = make_pool(&budget);
  EXPECT_EQ(pool->capacity(), std::min<std::uint64_t>((std::uint64_t{1} << 40) / kCost, kMaxPagesOfClass));
  std::vector<PageId> pages(1000);
  ASSERT_TRUE(pool->try_allocate(pages));
  EXPECT_EQ(budget.used(), 1000 * kCost);
  for (const PageId page : pages) pool->release(page);
  pool->check_invariants();
}

// A cache whose budget is short by one byte of what a sequence needs refuses exactly the token that needs it.
TEST(KvCache, OneByteShortFailsAtThatColumnAndLeavesNoTrace) {
  const KvCacheShape shape{.layers = 3, .kv_heads = 2, .page = {.head_dim = 4, .slots = 16, .key = KvType::kF16}};
  const auto cost = [&](std::uint64_t columns) { return KvCache::cost(shape, {}, static_cast<std::int64_t>(columns)); };
  for (const std::int64_t columns : {1, 2, 20})
    EXPECT_EQ(cost(static_cast<std::uint64_t>(columns)),
              static_cast<std::uint64_t>(columns) * 6 * kCost + PageTable::bytes_at(6, 16, {}, columns));
  EXPECT_FALSE(KvCache::create(shape, cost(1) - 1).ok());
  for (std::uint64_t columns = 1; columns <= 20; ++columns)
    for (const int step : {1, 5, 16, 40}) {
      for (const std::uint64_t missing : {0, 1}) {
        const std::uint64_t bytes = cost(columns) - missing;
        if (bytes < cost(1)) continue;
        auto cache = KvCache::create(shape, bytes);
        ASSERT_TRUE(cache.ok());
        KvSequence sequence = (*cache)->new_sequence();
        PageTable& table = sequence.only_table();
        const KvSequence* all[] = {&sequence};
        const TokenIndex fits = static_cast<TokenIndex>(columns - missing) * 16;
        for (;;) {
          const std::string before = test::dump(table) + test::dump((*cache)->pool(), (*cache)->budget());
          const auto plan = table.plan_append(step);
          const std::uint64_t used = (*cache)->budget().used();
          const Status status = table.append(step);
          (*cache)->check_invariants(all);
          if (status.ok()) {
            ASSERT_EQ((*cache)->budget().used(), used + plan.bytes);
            ASSERT_LE(table.next_index(), fits);
            continue;
          }
          ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
          ASSERT_EQ(status.settings(), (std::vector<std::string_view>{"kv_memory", "policy"}));
          ASSERT_EQ(test::dump(table) + test::dump((*cache)->pool(), (*cache)->budget()), before);
          ASSERT_GT(table.next_index() + step, fits);
          break;
        }
      }
    }
}

TEST(KvCache, EverythingReturnsWithTheLastSequence) {
  const KvCacheShape shape{.layers = 1, .kv_heads = 2, .page = {.head_dim = 2, .slots = 16, .key = KvType::kF32}};
  auto cache = KvCache::create(shape, 2 * KvCache::cost(shape, {}, 10));
  ASSERT_TRUE(cache.ok());
  {
    KvSequence a = (*cache)->new_sequence();
    ASSERT_TRUE(a.only_table().append(70).ok());
    auto b = (*cache)->fork(a);
    ASSERT_TRUE(b.ok());
    KvSequence moved = std::move(a);
    a = (*cache)->new_sequence();
    ASSERT_TRUE(moved.only_table().append(1).ok());
    EXPECT_EQ((*cache)->pool().in_use(), 2u * 6u);  // five columns, the open one twice
  }
  EXPECT_EQ((*cache)->pool().in_use(), 0u);
  EXPECT_EQ((*cache)->budget().used(), 0u);
  (*cache)->check_invariants({});
}

}  // namespace
}  // namespace kvasir
