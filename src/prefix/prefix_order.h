// The order in which a prefix cache evicts its items: how long each stays, who pins it, and what each tenant holds. The
// rules are in prefix_cache.h.
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

// How long an item stays.
struct PrefixKeep {
  bool pinned = false;                                     // until then
  double until = std::numeric_limits<double>::infinity();  // on the caller's clock, seconds
  int tenant = 0;                                          // the owner; a salt belongs to its first tenant
};

class PrefixOrder {
 public:
  using Node = PrefixTree::Node;
  using Life = PrefixTree::Life;
  using Item = PrefixTree::Item;
  // What a tenant holds.
  struct Share {
    std::set<Item> order;     // the next to be evicted first
    std::uint64_t bytes = 0;  // see PrefixCache::bytes_of
  };

  // `most_bytes`: the most bytes that the cache may hold.
  explicit PrefixOrder(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}

  std::map<int, Share>& shares() { return shares_; }  // by tenant
  const std::map<int, Share>& shares() const { return shares_; }
  Share& share_of(const Node* node) { return shares_[node->root->tenant]; }
  // Returns the shares that hold something, the largest first.
  std::vector<Share*> largest_first();

  // Begins the life of a block's pages, or of a snapshot, of `bytes` bytes.
  void begin(Node* node, Life& life, const PrefixKeep& keep, std::uint64_t bytes);
  // Marks it as used now.
  void use(Node* node, Life& life);
  // Marks it as used now, and prolongs its life.
  void keep_for(Node* node, Life& life, const PrefixKeep& keep, std::uint64_t bytes);
  // Adds to, and removes from, the items that may be evicted.
  void enter(Node* node, const Life& life);
  void leave(Node* node, const Life& life) { share_of(node).order.erase(item_of(node, life)); }
  void unpin(Life& life);
  static Item item_of(Node* node, const Life& life) { return {life.pinned, life.used, life.number, node}; }
  // Returns the items whose time to live, or whose pin's, has ended by `now`.
  std::vector<Item> ended(double now);

  std::uint64_t pinned_bytes() const { return pinned_bytes_; }
  const std::unordered_map<int, std::uint64_t>& pinned_by() const { return pinned_by_; }

 private:
  // Pins an item of `bytes` bytes, or prolongs its pin, if `keep` asks for it and its tenant may.
  void pin(Life& life, const PrefixKeep& keep, std::uint64_t bytes);
  // When its time to live or its pin ends, whichever is first.
  static double ends(const Life& life) { return life.pinned ? std::min(life.until, life.pinned_until) : life.until; }

  std::uint64_t most_bytes_;
  std::uint64_t pinned_bytes_ = 0;
  std::unordered_map<int, std::uint64_t> pinned_by_;            // by tenant; none is 0
  std::uint64_t clock_ = 0;                                     // counts uses
  double first_end_ = std::numeric_limits<double>::infinity();  // no life ends before this
  std::map<int, Share> shares_;
};

}  // namespace kvasir
