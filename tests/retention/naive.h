// Start + Recent as its definition reads, one token at a time over a list of ids; and policies driven as the engine
// does.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kv/batch_rows.h"
#include "kv/table.h"
#include "retention/registry.h"
#include "sequence/sequence_runner.h"

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
      .layers = lanes, .kv_heads = 1, .page = {.head_dim = 2, .slots = slots, .key = KvType::kF16}};
  auto cache = KvCache::create(shape, KvCache::cost(shape, {}, columns));
  EXPECT_TRUE(cache.ok());
  return std::move(*cache);
}

// What one chunk covers.
struct PassPlan {
  int rows = 0;
  std::vector<IndexRange> hidden;  // [rows]
};

inline PassPlan plan_pass(const RetentionPolicy& policy, int want) {
  PassPlan pass;
  pass.rows = chunk_rows(policy, want);
  pass.hidden.resize(static_cast<std::size_t>(pass.rows));
  find_hidden(policy, {.first = policy.seen(), .rows = pass.rows}, pass.hidden);
  return pass;
}

// The chunk has run: what the policy drops then, and how.
inline KeepPlan end_chunk(RetentionPolicy& policy, int rows) {
  KeepPlan plan;
  const PolicyChunk chunk{.first = policy.seen(), .rows = rows};
  const HidesRanges* ranges = policy.as<HidesRanges>();
  const IndexRange expected = ranges != nullptr ? ranges->will_drop(chunk) : IndexRange{};
  policy.end_chunk(chunk, 0, plan);
  EXPECT_EQ(plan.realign, policy.traits().realign);
  EXPECT_LE(plan.drop.size(), 1u);
  EXPECT_EQ(plan.drop.empty() ? IndexRange{} : plan.drop.front(), expected);
  return plan;
}

// The tokens that a policy says it retains.
inline std::vector<TokenIndex> retained_by(const RetentionPolicy& policy, int table = 0, int run = 0) {
  std::vector<IndexRange> ranges;
  policy.retained(table, run, ranges);
  std::vector<TokenIndex> tokens;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_TRUE(!ranges[i].empty() && (i == 0 || ranges[i - 1].end < ranges[i].begin));
    for (TokenIndex token = ranges[i].begin; token < ranges[i].end; ++token) tokens.push_back(token);
  }
  return tokens;
}

// Passes of want(done) tokens, the last one shorter: append, look, drop. `look` sees the table before the drop.
using Look = std::function<void(const PageTable& table, const PassPlan& pass)>;
inline void drive(RetentionPolicy& policy, KvCache& cache, KvSequence& sequence, std::int64_t tokens,
                  const std::function<int(std::int64_t)>& want, const Look& look, const Look& after) {
  PageTable& table = sequence.only_table();
  const KvSequence* all[] = {&sequence};
  while (table.next_index() < tokens) {
    const auto most = static_cast<int>(std::min<std::int64_t>(want(table.next_index()), tokens - table.next_index()));
    const PassPlan pass = plan_pass(policy, most);
    ASSERT_GE(pass.rows, 1);
    ASSERT_LE(pass.rows, most);
    ASSERT_TRUE(table.append(pass.rows).ok());
    look(table, pass);
    const KeepPlan plan = end_chunk(policy, pass.rows);
    const Status applied = table.apply(plan);
    ASSERT_TRUE(applied.ok()) << applied.message();
    ASSERT_EQ(policy.seen(), table.next_index());
    cache.check_invariants(all);
    after(table, pass);
  }
}

}  // namespace kvasir::test
