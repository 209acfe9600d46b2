// In which order a prefix cache gives back what it holds: how long each thing stays, who pins it, and what each tenant
// holds. The rules are in prefix_cache.h.
// Thread-safety: none; as the prefix cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "prefix/prefix_tree.h"

namespace kvasir {

// How long something stays.
struct PrefixKeep {
  bool pinned = false;                                     // as long
  double until = std::numeric_limits<double>::infinity();  // on the caller's clock, seconds
  int tenant = 0;                                          // whose it is; of a salt, the first counts
};

class PrefixOrder {
 public:
  using Node = PrefixTree::Node;
  using Life = PrefixTree::Life;
  using Item = PrefixTree::Item;
  // What a tenant holds.
  struct Share {
    std::set<Item> order;     // the next to go first
    std::uint64_t bytes = 0;  // see PrefixCache::bytes_of
  };

  // `most_bytes`: of all that may be held.
  explicit PrefixOrder(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}

  std::map<int, Share>& shares() { return shares_; }  // by tenant
  const std::map<int, Share>& shares() const { return shares_; }
  Share& share_of(const Node* node) { return shares_[node->root->tenant]; }
  // Shares that hold something, the largest first.
  std::vector<Share*> largest_first();

  // Begins the life of a block's pages or of a snapshot, of so many bytes, as `keep` says.
  void begin(Node* node, Life& life, const PrefixKeep& keep, std::uint64_t bytes);
  // Marks it as used now.
  void use(Node* node, Life& life);
  // The same, and prolongs its life.
  void keep_for(Node* node, Life& life, const PrefixKeep& keep, std::uint64_t bytes);
  // What may be evicted is in the order.
  void enter(Node* node, const Life& life);
  void leave(Node* node, const Life& life) { share_of(node).order.erase(item_of(node, life)); }
  void unpin(Life& life);
  static Item item_of(Node* node, const Life& life) { return {life.pinned, life.used, life.number, node}; }
  // Returns what has passed its time to live, or its pin's, by `now`.
  std::vector<Item> ended(double now);

  std::uint64_t pinned_bytes() const { return pinned_bytes_; }
  const std::unordered_map<int, std::uint64_t>& pinned_by() const { return pinned_by_; }

 private:
  // Pins something of so many bytes, or for longer, if `keep` asks for it and its tenant may.
  void pin(Life& life, const PrefixKeep& keep, std::uint64_t bytes);
  // When it is given back, or its pin ends.
  static double ends(const Life& life) { return life.pinned ? std::min(life.until, life.pinned_until) : life.until; }

  std::uint64_t most_bytes_;
  std::uint64_t pinned_bytes_ = 0;
  std::unordered_map<int, std::uint64_t> pinned_by_;            // by tenant; none is 0
  std::uint64_t clock_ = 0;                                     // of uses
  double first_end_ = std::numeric_limits<double>::infinity();  // of all lives that were in order; maybe too early
  std::map<int, Share> shares_;
};

}  // namespace kvasir
