#include "offload/follower_plan.h"

#include <algorithm>
#include <set>

#include "offload/follower_sets.h"
#include "tiers/cold_tier.h"

namespace kvasir {

std::uint64_t FollowerPlan::set_bytes(std::int64_t clusters, std::int64_t chosen) {
  return static_cast<std::uint64_t>(clusters) * FollowerSet::bytes_for(chosen);
}

std::uint64_t FollowerPlan::entry_bytes(std::int64_t clusters, std::int64_t tokens) const {
  return static_cast<std::uint64_t>(clusters) * static_cast<std::uint64_t>(list_columns(tokens)) *
         (sizeof(PageEntry) + sizeof(std::uint32_t) + sizeof(std::shared_ptr<ColdBlock>));
}

std::uint64_t FollowerPlan::block_bytes(std::int64_t clusters, std::int64_t cold) const {
  const auto parts = static_cast<std::size_t>(format.slots / part_tokens(followers));
  return static_cast<std::uint64_t>(clusters) * static_cast<std::uint64_t>(cold / format.slots) *
         ColdBlock::memory_bytes(parts);
}

int FollowerPlan::part_tokens(int of_cluster) const {
  constexpr std::size_t kPartBytes = 4096;
  const std::size_t record = format.row_bytes() * static_cast<std::size_t>(of_cluster);
  int tokens = 1;
  while (tokens < format.slots && record * 2 * static_cast<std::size_t>(tokens) <= kPartBytes) tokens *= 2;
  return tokens;
}

FollowerMemory plan_followers(const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t tokens,
                              std::int64_t prompt, int chunk) {
  // Other prompts may follow, so bounds are those of a text that is all prompt.
  const FollowsHeads::Bounds bounds = policy.as<FollowsHeads>()->bounds(shape.kv_heads, tokens);
  const FollowerPlan plan(shape, bounds.leaders);
  FollowerMemory memory;
  memory.tables = plan.layers * plan.followers;
  memory.own_columns = plan.columns(tokens);
  if (plan.followers == 0 || prompt == 0) return memory;
  const std::int64_t clusters = std::int64_t{plan.layers} * bounds.leaders;
  // A table keeps what is not settled, and a chunk that begins anywhere in a page; without a profile, all of a prompt.
  const std::int64_t most = (bounds.known ? std::min<std::int64_t>(chunk, prompt) : prompt) + bounds.recent;
  memory.own_columns = std::min(memory.own_columns, plan.columns(most) + 2);
  const std::uint64_t work = plan.work_bytes(tokens);
  memory.bytes = std::max(work, plan.hot_bytes(bounds.chosen)) + FollowerPlan::set_bytes(clusters, bounds.chosen) +
                 plan.entry_bytes(clusters, tokens + plan.format.slots) +
                 plan.block_bytes(clusters, tokens + plan.format.slots);
  memory.file_bytes = static_cast<std::uint64_t>(memory.tables) * static_cast<std::uint64_t>(plan.columns(tokens)) *
                      plan.format.bytes();
  // There is a file with buffers for each part size, and that depends on how many heads follow a leader.
  memory.buffer_bytes = ColdTier::kMostQueued;
  std::set<std::size_t> part_sizes;
  for (int of_cluster = 1; of_cluster <= plan.followers; ++of_cluster) part_sizes.insert(plan.part_bytes(of_cluster));
  for (const std::size_t bytes : part_sizes) memory.buffer_bytes += ColdTier::kBuffers * bytes;
  return memory;
}

}  // namespace kvasir
