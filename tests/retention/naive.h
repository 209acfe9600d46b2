// Start + Recent as its definition reads, one token at a time over a list of ids; and policies driven as the engine
// does.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "engine/sequence_runner.h"
#include "kv/table.h"
#include "retention/registry.h"

namespace kvasir::test {

struct NaiveOptions {
  std::int64_t sinks = 0;   // S
  std::int64_t window = 1;  // W
  std::int64_t every = 1;   // R; 0: never
  std::int64_t slack = 0;
  std::int64_t max_drop = 0;  // 0: no limit
};

struct NaiveStep {
  std::vector<TokenIndex> seen;  // by the token's query
  std::vector<TokenIndex> kept;  // after pruning
  bool pruned = false;
};

inline std::vector<NaiveStep> simulate(const NaiveOptions& options, std::int64_t tokens) {
  std::vector<NaiveStep> steps;
  std::vector<TokenIndex> cache;
  const std::int64_t target = options.sinks + options.window;
  for (TokenIndex id = 0; id < tokens; ++id) {
    NaiveStep step;
    cache.push_back(id);
    step.seen = cache;
    const auto length = static_cast<std::int64_t>(cache.size());
    if (options.every != 0 && length - target >= options.every + options.slack) {
      std::int64_t drop = length - target;
      if (options.max_drop != 0 && drop > options.max_drop) drop = options.max_drop;
      cache.erase(cache.begin() + options.sinks, cache.begin() + options.sinks + drop);
      step.pruned = true;
    }
    step.kept = cache;
    steps.push_back(step);
  }
  return steps;
}

inline std::unique_ptr<RetentionPolicy> policy_of(const std::string& spec) {
  auto policy = make_policy(spec);
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  return std::move(*policy);
}

inline std::unique_ptr<KvCache> table_only(int slots, std::int64_t columns, int lanes = 1) {
  const KvCacheShape shape{
      .layers = lanes, .kv_heads = 1, .page = {.head_dim = 2, .slots = slots, .type = KvType::kF16}};
  auto cache =
      KvCache::create(shape, static_cast<std::uint64_t>(columns) * KvCache::column_cost(shape), Backing::kNone);
  EXPECT_TRUE(cache.ok());
  return std::move(*cache);
}

// Passes of want(done) tokens, the last one shorter: append, look, drop. `look` sees the group before the drop.
using Look = std::function<void(const LaneGroup& group, const PassPlan& pass)>;
inline void drive(RetentionPolicy& policy, KvCache& cache, KvSequence& sequence, std::int64_t tokens,
                  const std::function<int(std::int64_t)>& want, const Look& look, const Look& after) {
  LaneGroup& group = sequence.group();
  const KvSequence* all[] = {&sequence};
  while (group.next_id() < tokens) {
    const auto most = static_cast<int>(std::min<std::int64_t>(want(group.next_id()), tokens - group.next_id()));
    const PassPlan pass = plan_pass(policy, most);
    ASSERT_GE(pass.rows, 1);
    ASSERT_LE(pass.rows, most);
    ASSERT_TRUE(group.append(pass.rows).ok());
    look(group, pass);
    const Status dropped = group.drop(policy.dropped(), policy.realign());
    ASSERT_TRUE(dropped.ok()) << dropped.message();
    cache.check_invariants(all);
    after(group, pass);
  }
}

// The ids that a row of a view sees, in the view's order.
inline std::vector<TokenIndex> visible_ids(const AttentionView& view, int row) {
  std::vector<TokenIndex> ids;
  for (std::size_t e = 0; e < view.entries(); ++e)
    for (int slot = 0; slot < 64; ++slot)
      if ((view.masks[static_cast<std::size_t>(row) * view.entries() + e] >> slot & 1) != 0)
        ids.push_back(view.columns[e]->id(slot));
  return ids;
}

}  // namespace kvasir::test
