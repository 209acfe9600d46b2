// Tables of a model with a sliding window against tables of one without, under the same random operations: what is
// given back is missing, and all else is the same.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kv/kv_cache.h"
#include "kv/table.h"

namespace kvasir {
namespace {

struct Pair {
  KvSequence windowed;
  KvSequence whole;

  PageTable& first() { return windowed.only_table(); }
  PageTable& second() { return whole.only_table(); }
};

void verify(const PageTable& windowed, const PageTable& whole, Position window, TokenIndex sinks) {
  ASSERT_EQ(windowed.length(), whole.length());
  ASSERT_EQ(windowed.frames().size(), whole.frames().size());
  for (std::size_t f = 0; f < whole.frames().size(); ++f) {
    const PageTable::Frame& a = windowed.frames()[f];
    const PageTable::Frame& b = whole.frames()[f];
    ASSERT_EQ(a.origin, b.origin);
    ASSERT_EQ(a.rotation, b.rotation);
    ASSERT_EQ(a.tokens, b.tokens);
    if (a.tokens > 0) {
      ASSERT_EQ(windowed.tokens().first_token(f), whole.tokens().first_token(f));
    }
  }
  const IndexRange hole = windowed.tokens().given_back;
  ASSERT_TRUE(hole.empty() || hole.begin >= sinks);
  ASSERT_LE(hole.end, std::max<TokenIndex>(windowed.next_index() - window + 1, 0));
  std::vector<test::LiveToken> left = test::live_tokens(whole);
  std::erase_if(left, [&](const test::LiveToken& t) { return t.id >= hole.begin && t.id < hole.end; });
  const std::vector<test::LiveToken> live = test::live_tokens(windowed);
  ASSERT_EQ(live.size(), left.size());
  ASSERT_EQ(windowed.tokens().stored(), static_cast<std::int64_t>(left.size()));
  for (std::size_t i = 0; i < live.size(); ++i) {
    ASSERT_EQ(live[i].id, left[i].id);
    ASSERT_EQ(live[i].position, left[i].position);
    ASSERT_EQ(live[i].frame, left[i].frame);
    ASSERT_EQ(live[i].slot, left[i].slot);
  }
}

class GivenBack : public ::testing::TestWithParam<int> {};

TEST_P(GivenBack, OnlyThePagesDiffer) {
  const int slots = GetParam();
  std::mt19937_64 random(static_cast<std::uint64_t>(slots));
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int given_back = 0, drops = 0, drops_without_pages = 0, refused = 0, forks = 0, restored = 0;
  for (int round = 0; round < 60; ++round) {
    const Position window = draw(1, 4 * slots);
    const TokenIndex sinks = draw(0, 1) * draw(0, 2 * slots);
    SCOPED_TRACE(fmt::format("round {} window {} sinks {}", round, window, sinks));
    const KvCacheShape of_windowed{2, 1, {8, slots, KvType::kF16}, window};
    const KvCacheShape of_whole{2, 1, {8, slots, KvType::kF16}};
    const std::uint64_t budget = 3 * KvCache::cost(of_whole, {}, 200);
    const auto first = std::move(*KvCache::create(of_windowed, budget));
    const auto second = std::move(*KvCache::create(of_whole, budget));
    SequenceLayout layout;
    layout.table.sinks = sinks;
    Pair pair{first->new_sequence(layout), second->new_sequence(layout)};
    for (int step = 0; step < 150; ++step) {
      SCOPED_TRACE(fmt::format("step {}", step));
      const int choice = draw(0, 19);
      const auto next = static_cast<int>(pair.second().next_index());
      if (choice < 9 || next == 0) {
        const int tokens = draw(1, draw(0, 3) == 0 ? 2 * slots : 5);
        ASSERT_TRUE(pair.windowed.append(tokens).ok() && pair.whole.append(tokens).ok());
      } else if (choice < 14) {
        KeepPlan plan;
        const TokenIndex begin = draw(0, next - 1);
        plan.drop.push_back({begin, begin + draw(1, draw(0, 3) == 0 ? 3 * slots : 4)});
        plan.realign = draw(0, 2) == 0 ? Realign::kRotate : Realign::kFrames;
        const IndexRange range = plan.drop.front(), hole = pair.first().tokens().given_back;
        ASSERT_EQ(pair.first().tokens().retained_in(range), pair.second().tokens().retained_in(range));
        const std::string before = test::dump(pair.first());
        const Status expected = pair.second().apply(plan), status = pair.first().apply(plan);
        // Where pages are missing, fewer entries are in the way.
        ASSERT_TRUE(status.ok() || !expected.ok());
        if (!status.ok()) {
          ASSERT_EQ(test::dump(pair.first()), before);
          ++refused;
        }
        if (status.ok() != expected.ok()) break;
        drops += status.ok() ? 1 : 0;
        drops_without_pages += status.ok() && range.begin < hole.end && range.end > hole.begin ? 1 : 0;
      } else if (choice < 18) {
        const TokenIndex end = pair.first().tokens().given_back.end;
        pair.windowed.give_back();
        pair.whole.give_back();
        ASSERT_TRUE(pair.second().tokens().given_back.empty());
        given_back += pair.first().tokens().given_back.end > end ? 1 : 0;
      } else if (choice < 19) {
        Pair fork{std::move(*first->fork(pair.windowed)), std::move(*second->fork(pair.whole))};
        const std::vector<const KvSequence*> all = {&pair.windowed, &fork.windowed};
        first->check_invariants(all);
        if (draw(0, 1) == 0) std::swap(pair, fork);
        ++forks;
      } else {
        std::vector<std::byte> bytes;
        ByteWriter out(&bytes);
        pair.first().save(out);
        KvSequence copy = first->new_sequence(layout);
        ByteReader in(bytes);
        ASSERT_TRUE(copy.only_table().restore(in).ok());
        std::swap(pair.windowed, copy);
        ++restored;
      }
      const std::vector<const KvSequence*> all = {&pair.windowed};
      ASSERT_NO_FATAL_FAILURE(first->check_invariants(all));
      ASSERT_NO_FATAL_FAILURE(verify(pair.first(), pair.second(), window, sinks));
    }
  }
  EXPECT_GT(given_back, 300);
  EXPECT_GT(drops, 1000);
  EXPECT_GT(drops_without_pages, 300);
  if (slots > 16) {
    EXPECT_GT(refused, 0);
  }
  EXPECT_GT(forks, 200);
  EXPECT_GT(restored, 200);
}

INSTANTIATE_TEST_SUITE_P(Slots, GivenBack, ::testing::Values(16, 32, 64));

}  // namespace
}  // namespace kvasir
