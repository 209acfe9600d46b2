#include "kv/page_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_page_store.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/pages/page_layout.h"
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
  CpuPageStore store_{&generic_kernels(), &threads_, {{4, {1.0, 0.1}, 1}}};
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

// Resident bytes of a range of addresses.
std::uint64_t resident(const std::byte* begin, std::uint64_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(begin) / page * page;
  const std::uintptr_t pages = (reinterpret_cast<std::uintptr_t>(begin) + bytes - first + page - 1) / page;
  std::vector<unsigned char> states(pages);
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(first), pages * page, states.data()), 0);
  return page * static_cast<std::uint64_t>(std::ranges::count_if(states, [](unsigned char s) { return (s & 1) != 0; }));
}

// What one format gave up is the memory of the next: the pages of all formats together take what the budget has.
TEST(PagePool, FormatsShareTheMemoryNotOnlyTheBudget) {
  const PageFormat large{.head_dim = 64, .slots = 32, .key = KvType::kF16};
  const PageFormat small{.head_dim = 64, .slots = 32, .key = KvType::kQ4};
  ThreadPool threads(1);
  CpuPageStore store(&generic_kernels(), &threads, {Rotation{64, std::vector<double>(32, 1.0), 1}});
  MemoryBudget budget(8 << 20);
  const auto pool = std::move(*PagePool::create(large, &budget, &store));
  const PageClass of[] = {PageClass{}, pool->classes_of(small)->sealed};
  const auto in_memory = [&] {
    std::uint64_t bytes = 0;
    for (const PageClass c : of)
      bytes += resident(store.data(page_id(c, 0)), budget.capacity() / pool->page_cost(c) * pool->format(c).bytes());
    return bytes;
  };
  for (int round = 0; round < 4; ++round) {
    const PageClass c = of[round % 2];
    std::vector<PageId> pages(budget.capacity() / pool->page_cost(c));
    ASSERT_TRUE(pool->try_allocate(pages, PageOwner::kNobody, c));
    std::vector<std::byte> bytes(pool->format(c).bytes());
    for (const PageId page : pages) {
      store.read(page, bytes);
      ASSERT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; }));
      std::ranges::fill(bytes, std::byte{0xff});
      store.write(page, bytes);
    }
    pool->check_invariants();
    EXPECT_GE(pool->allocated(), pool->charged());
    EXPECT_LE(pool->allocated(), budget.capacity() + 2 * PageBlocks::kLeastBytes);
    EXPECT_LE(in_memory(), budget.capacity() + 2 * PageBlocks::kLeastBytes);
    for (const PageId page : pages) pool->release(page);
    EXPECT_EQ(pool->charged(), 0u);
  }
}

// Pages of random formats, taken and released at random: what is in use is whole, what comes anew is zero.
TEST(PagePool, PagesKeepTheirContentWhateverGivesMemoryBack) {
  const PageFormat formats[] = {{.head_dim = 64, .slots = 32, .key = KvType::kF16},
                                {.head_dim = 64, .slots = 32, .key = KvType::kQ4O},
                                {.head_dim = 64, .slots = 32, .key = KvType::kF32, .value = KvType::kQ2}};
  ThreadPool threads(1);
  CpuPageStore store(&generic_kernels(), &threads, {Rotation{64, std::vector<double>(32, 1.0), 1}});
  MemoryBudget budget(12 << 20);
  const auto pool = std::move(*PagePool::create(formats[0], &budget, &store));
  std::vector<PageClass> of;
  for (const PageFormat& format : formats) of.push_back(pool->classes_of(format)->sealed);
  std::mt19937_64 random(7);
  std::vector<std::pair<PageId, std::byte>> held;
  std::vector<std::byte> bytes;
  std::uint64_t shrunk = 0;
  for (int step = 0; step < 400; ++step) {
    const std::uint64_t before = pool->allocated();
    std::vector<PageId> pages(1 + random() % 300);
    // One format after the other has its time.
    const PageClass c = of[random() % 8 == 0 ? random() % of.size() : static_cast<std::size_t>(step / 60) % of.size()];
    if (pool->try_allocate(pages, PageOwner::kNobody, c)) {
      for (const PageId page : pages) {
        bytes.resize(pool->format(c).bytes());
        store.read(page, bytes);
        ASSERT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; })) << step;
        held.emplace_back(page, static_cast<std::byte>(1 + random() % 255));
        std::ranges::fill(bytes, held.back().second);
        store.write(page, bytes);
      }
      shrunk += pool->allocated() < before + pages.size() * pool->page_cost(c) ? 1 : 0;
    } else {
      std::ranges::shuffle(held, random);
      const std::size_t keep = random() % 3 == 0 ? 0 : held.size() / 2;
      for (std::size_t i = keep; i < held.size(); ++i) {
        bytes.resize(pool->format(page_class(held[i].first)).bytes());
        store.read(held[i].first, bytes);
        ASSERT_TRUE(std::ranges::all_of(bytes, [&](std::byte b) { return b == held[i].second; })) << step;
        pool->release(held[i].first);
      }
      held.resize(keep);
    }
    pool->check_invariants();
    ASSERT_GE(pool->allocated(), pool->charged());
  }
  EXPECT_GT(shrunk, 10u);
  for (const auto& [page, value] : held) pool->release(page);
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
              static_cast<std::uint64_t>(columns) * 6 * kCost + TableMemory::bytes_at(6, 16, {}, columns));
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
          const auto plan = table.memory().plan_append(step);
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
