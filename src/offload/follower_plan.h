// Formulas for the memory that offloading takes (follower_heads.h).
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "kv/kv_cache.h"
#include "retention/policy.h"

namespace kvasir {

struct FollowerPlan {
  int layers = 0;
  int heads = 0;      // KV heads of a layer
  int followers = 0;  // of these, at most so many follow another
  PageFormat format;

  FollowerPlan(const KvCacheShape& shape, int leaders)
      : layers(shape.layers), heads(shape.kv_heads), followers(shape.kv_heads - leaders), format(shape.page) {}

  static constexpr int kWorkLayers = 2;            // layers whose pages are in memory while rows read everything
  static constexpr std::int64_t kColumnStep = 64;  // lists of entries grow by so many columns

  std::uint64_t page_cost() const { return format.bytes() + PagePool::kPageOverhead; }
  std::int64_t columns(std::int64_t tokens) const { return (tokens + format.slots - 1) / format.slots; }
  std::int64_t list_columns(std::int64_t tokens) const {
    return (columns(tokens) + kColumnStep) / kColumnStep * kColumnStep;
  }

  // Returns the bytes of the hot rows: pages for `chosen` tokens of every follower, and their references.
  std::uint64_t hot_bytes(std::int64_t chosen) const {
    return static_cast<std::uint64_t>(layers) * static_cast<std::uint64_t>(followers) *
           static_cast<std::uint64_t>(columns(chosen)) * (page_cost() + sizeof(PageId));
  }
  // Returns the bytes of the work pages: the first `cold` tokens of every follower of kWorkLayers layers.
  std::uint64_t work_bytes(std::int64_t cold) const {
    return static_cast<std::uint64_t>(kWorkLayers) * static_cast<std::uint64_t>(followers) *
           static_cast<std::uint64_t>(cold / format.slots) * (page_cost() + sizeof(PageId));
  }
  // Returns the bytes of the sets (FollowerSet) of `clusters` clusters.
  static std::uint64_t set_bytes(std::int64_t clusters, std::int64_t chosen);
  // Return the bytes of the lists for a text of `tokens` tokens, and of the file's blocks for `cold` tokens.
  std::uint64_t entry_bytes(std::int64_t clusters, std::int64_t tokens) const;
  std::uint64_t block_bytes(std::int64_t clusters, std::int64_t cold) const;

  // Returns the tokens in a part of the file, for a cluster of `of_cluster` followers.
  int part_tokens(int of_cluster) const;
  std::size_t part_bytes(int of_cluster) const {
    return format.row_bytes() * static_cast<std::size_t>(of_cluster * part_tokens(of_cluster));
  }
};

// The most that offloading takes for one sequence.
struct FollowerMemory {
  std::uint64_t bytes = 0;       // hot rows, work pages, lists: all but the tables' own pages
  int tables = 0;                // following tables
  std::int64_t own_columns = 0;  // columns that each of these keeps
  std::uint64_t file_bytes = 0;
  std::uint64_t buffer_bytes = 0;  // not charged to the KV budget; of all sequences together
};
FollowerMemory plan_followers(const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t tokens,
                              std::int64_t prompt, int chunk);

}  // namespace kvasir
