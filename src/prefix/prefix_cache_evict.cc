// Eviction from a prefix cache: what leaves, in which order, and why.
#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "prefix/prefix_cache.h"

namespace kvasir {
namespace {

bool frees(const PagePool& pool, const PrefixTree::Item& item) {
  if (!item.is_block()) return item.snapshot().snapshot->own_bytes() > 0;
  return std::ranges::any_of(item.node->pages, [&](PageId page) { return pool.references(page) == 1; });
}

}  // namespace

void PrefixCache::evict(const Item& item, PrefixMiss why) {
  Node* node = item.node;
  ++version_;
  PrefixOrder::Share& share = order_.share_of(node);
  share.order.erase(item);
  order_.unpin(item.life());
  tree_.gone().remember(node->hash, why);
  if (item.is_block()) {
    share.bytes -= tree_.block_bytes(*node);
    for (const PageId page : node->pages) cache_->pool().release(page, owner_);
    node->pages.clear();
    if (listener_ != nullptr) listener_->removed(node->hash);
    if (Node* parent = node->parent; parent != nullptr) {
      --parent->paged_children;
      if (parent->in_order()) order_.enter(parent, parent->life);
    }
  } else {
    const Snapshot& snapshot = item.snapshot();
    tree_.give_back(snapshot.charged);
    snapshot_bytes_ -= snapshot.snapshot->own_bytes();
    share.bytes -= snapshot.bytes;
    node->snapshots.erase(node->snapshots.begin() + (&snapshot - node->snapshots.data()));
  }
  tree_.remove_if_bare(node, why);
}

bool PrefixCache::evict_one() {
  const std::vector<PrefixOrder::Share*> shares = order_.largest_first();
  for (const bool pinned : {false, true})
    for (const PrefixOrder::Share* share : shares) {
      const auto found = std::ranges::find_if(
          share->order, [&](const Item& item) { return item.pinned == pinned && frees(cache_->pool(), item); });
      if (found == share->order.end()) continue;
      evict(Item(*found), PrefixMiss::kEvicted);
      return true;
    }
  // A sequence that dropped its first tokens may share a block behind blocks whose pages only the cache holds. These
  // can be evicted once that block has been.
  if (shares.empty() || cache_->pool().cached().only_pages == 0) return false;
  evict(Item(*shares.front()->order.begin()), PrefixMiss::kEvicted);
  return true;
}

void PrefixCache::clear() {
  for (auto& [tenant, share] : order_.shares())
    while (!share.order.empty()) evict(Item(*share.order.begin()), PrefixMiss::kEvicted);
}

std::uint64_t PrefixCache::bytes_of(int tenant) const {
  const auto share = order_.shares().find(tenant);
  return share == order_.shares().end() ? 0 : share->second.bytes;
}

void PrefixCache::evict_chain(const Item& item, PrefixMiss why, const std::function<bool(const Node&)>& goes) {
  // Evicting keeps `parent` in the tree: blocks before one with pages have pages too.
  Node* parent = item.is_block() ? item.node->parent : nullptr;
  evict(item, why);
  while (parent != nullptr && parent->in_order() && goes(*parent)) {
    Node* const block = std::exchange(parent, parent->parent);
    evict(PrefixOrder::item_of(block, block->life), why);
  }
}

void PrefixCache::discard(const PrefixSpace& space, std::span<const TokenId> tokens) {
  const Node* first = nullptr;
  tree_.walk(space, tokens, [&](const Node& node) { return (first = &node) == nullptr; });
  if (first == nullptr) return;
  std::vector<Item> behind;
  for (const Item& item : order_.share_of(first).order) {
    const Node* node = item.node;
    while (node->parent != nullptr) node = node->parent;
    if (node == first) behind.push_back(item);
  }
  for (const Item& item : behind) evict_chain(item, PrefixMiss::kEvicted, [](const Node&) { return true; });
}

void PrefixCache::expire(double now) {
  // Blocks before an evicted one are evicted too if their own time to live has passed.
  const auto goes = [now](const Node& block) { return block.life.until <= now; };
  for (const Item& item : order_.ended(now)) {
    if (Life& life = item.life(); life.until > now) {
      order_.leave(item.node, life);
      order_.unpin(life);
      order_.enter(item.node, life);
    } else {
      evict_chain(item, PrefixMiss::kExpired, goes);
    }
  }
}

void PrefixCache::keep_within_bound() {
  while (bytes() > most_bytes_) {
    if (evict_one()) continue;
    // Pages shared with sequences count too, so that the bound still holds when these sequences have ended.
    const std::vector<PrefixOrder::Share*> shares = order_.largest_first();
    if (shares.empty()) return;
    evict(Item(*shares.front()->order.begin()), PrefixMiss::kEvicted);
  }
}

std::uint64_t PrefixCache::evictable_bytes() const {
  return cache_->pool().cached().only_bytes + snapshot_bytes_;
}

std::uint64_t PrefixCache::bytes() const {
  return cache_->pool().cached().bytes + snapshot_bytes_ + tree_.charged_bytes();
}

}  // namespace kvasir
