// What offloading takes of memory, by formula: see follower_heads.h.
#pragma once

#include <cstdint>

#include "kv/kv_cache.h"
#include "retention/policy.h"

namespace kvasir {

struct FollowerPlan {
  int layers = 0;
  int heads = 0;      // KV heads of a layer
  int followers = 0;  // of these, those that follow another
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

  // Pages of rows for `chosen` tokens of every follower, and what their references take.
  std::uint64_t hot_bytes(std::int64_t chosen) const {
    return static_cast<std::uint64_t>(layers) * static_cast<std::uint64_t>(followers) *
           static_cast<std::uint64_t>(columns(chosen)) * (page_cost() + sizeof(PageId));
  }
  // Pages of all followers of some layers for the first `cold` tokens.
  std::uint64_t work_bytes(std::int64_t cold) const {
    return static_cast<std::uint64_t>(kWorkLayers) * static_cast<std::uint64_t>(followers) *
           static_cast<std::uint64_t>(cold / format.slots) * (page_cost() + sizeof(PageId));
  }
  // Lists of tokens and rows, of `clusters` clusters.
  static std::uint64_t set_bytes(std::int64_t clusters, std::int64_t chosen);
  // Entries of a text of so many tokens, and the blocks of the file.
  std::uint64_t entry_bytes(std::int64_t clusters, std::int64_t tokens) const;
  std::uint64_t block_bytes(std::int64_t clusters, std::int64_t cold) const;

  // Tokens in a part of the file, for a cluster of so many followers.
  int part_tokens(int of_cluster) const;
  std::size_t part_bytes(int of_cluster) const {
    return format.row_bytes() * static_cast<std::size_t>(of_cluster * part_tokens(of_cluster));
  }
};

// What plan_kv_memory says of it, of one sequence.
struct FollowerMemory {
  std::uint64_t bytes = 0;         // hot rows, work pages, lists: all but the tables' own pages
  int tables = 0;                  // that follow
  std::int64_t own_columns = 0;    // that each of these has at most
  std::uint64_t file_bytes = 0;    // at most
  std::uint64_t buffer_bytes = 0;  // beside the KV memory, of all sequences together
};
FollowerMemory plan_followers(const KvCacheShape& shape, const RetentionPolicy& policy, std::int64_t tokens,
                              std::int64_t prompt, int chunk);

}  // namespace kvasir
