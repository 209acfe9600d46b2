// Random keep plans on tables with pages and without: the bookkeeping is the same.
#include <gtest/gtest.h>

#include <algorithm>

#include "kv/paged_cache.h"
#include "kv/table.h"
#include "property/plan_model.h"

namespace kvasir {
namespace {

using test::Token;

// A plan of memory runs the same tables on a pool without a store, where nothing is moved.
TEST(PageTableListsUnbacked, TablesAreTheSameWithoutAStore) {
  for (const bool original : {false, true}) {
    test::RandomPlans random(original ? 1 : 2);
    const KvCacheShape shape{.layers = 1, .kv_heads = 2, .page = {.head_dim = 2, .slots = 16, .key = KvType::kF16}};
    SequenceLayout layout;
    layout.table.lists = true;
    layout.table.original_positions = original;
    const std::uint64_t budget = KvCache::cost(shape, layout, 100);
    const test::PagedCache real(shape, budget);
    const auto counted = std::move(*KvCache::create(shape, budget));
    KvSequence with = real->new_sequence(layout), without = counted->new_sequence(layout);
    test::PlanModel model;
    for (int step = 0; step < 500; ++step) {
      const int tokens = random.draw(1, 20);
      ASSERT_TRUE(with.append(tokens).ok() && without.append(tokens).ok());
      for (int i = 0; i < tokens; ++i) model.tokens.push_back({model.next++, 0, 0});
      std::vector<Token> kept = random.subset(model, 16, 100);
      KeepPlan plan;
      for (const Token& token : model.tokens)
        if (std::ranges::find(kept, token.id, &Token::id) == kept.end()) plan.add_drop({token.id, token.id + 1});
      model.tokens = std::move(kept);
      ASSERT_TRUE(with.only_table().apply(plan).ok() && without.only_table().apply(plan).ok());
      ASSERT_EQ(test::dump(with.only_table()), test::dump(without.only_table()));
      ASSERT_EQ(with.only_table().pages().slots_moved(), without.only_table().pages().slots_moved());
      ASSERT_EQ(real->budget().used(), counted->budget().used());
    }
    EXPECT_GT(with.only_table().pages().slots_moved(), 500u);
  }
}

}  // namespace
}  // namespace kvasir
