// What leaves a prefix cache, in which order, and why.
#include <algorithm>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "prefix/prefix_cache.h"

namespace kvasir {
namespace {

// Blocks that are remembered after they went.
constexpr std::size_t kMostGone = 16384;

}  // namespace

void PrefixCache::remember(std::uint64_t hash, PrefixMiss why) {
  const auto [gone, added] = gone_.try_emplace(hash);
  gone->second.why = why;
  if (!added) return gone_order_.splice(gone_order_.end(), gone_order_, gone->second.place);
  gone->second.place = gone_order_.insert(gone_order_.end(), hash);
  if (gone_order_.size() <= kMostGone) return;
  gone_.erase(gone_order_.front());
  gone_order_.pop_front();
}

void PrefixCache::forget(std::uint64_t hash) {
  const auto gone = gone_.find(hash);
  if (gone == gone_.end()) return;
  gone_order_.erase(gone->second.place);
  gone_.erase(gone);
}

PrefixMiss PrefixCache::reason(std::uint64_t hash) const {
  const auto gone = gone_.find(hash);
  return gone == gone_.end() ? PrefixMiss::kNone : gone->second.why;
}

void PrefixCache::evict(const Item& item, PrefixMiss why) {
  Node* node = item.node;
  ++version_;
  Share& share = share_of(node);
  share.order.erase(item);
  unpin(life_of(item));
  remember(node->hash, why);
  if (is_block(item)) {
    share.bytes -= block_bytes(*node);
    for (const PageId page : node->pages) cache_->pool().release(page, owner_);
    node->pages.clear();
    if (listener_ != nullptr) listener_->removed(node->hash);
    if (Node* parent = node->parent; parent != nullptr) {
      --parent->paged_children;
      if (in_order(*parent)) enter(parent, parent->life);
    }
  } else {
    const Snapshot& snapshot = snapshot_of(item);
    KVASIR_CHECK(charge_.try_resize(charge_.bytes() - snapshot.charged));
    snapshot_bytes_ -= snapshot.snapshot->own_bytes();
    share.bytes -= snapshot.bytes;
    node->snapshots.erase(node->snapshots.begin() + (&snapshot - node->snapshots.data()));
  }
  remove_if_bare(node, why);
}

PrefixCache::Snapshot& PrefixCache::snapshot_of(const Item& item) {
  const auto found =
      std::ranges::find(item.node->snapshots, item.number, [](const Snapshot& s) { return s.life.number; });
  KVASIR_CHECK(found != item.node->snapshots.end());
  return *found;
}

void PrefixCache::pin(Life& life, const PrefixKeep& keep, std::uint64_t bytes) {
  if (!keep.pinned) return;
  if (life.pinned) {
    life.pinned_until = std::max(life.pinned_until, keep.until);
    return;
  }
  const auto held = pinned_by_.find(keep.tenant);
  const std::uint64_t pinned = (held == pinned_by_.end() ? 0 : held->second) + bytes;
  const std::uint64_t most = std::min(most_bytes_, cache_->budget().capacity());
  if (pinned > most || pinned_bytes_ + bytes > most - pinned) return;
  pinned_by_[keep.tenant] = pinned;
  pinned_bytes_ += bytes;
  life.pinned = true;
  life.tenant = keep.tenant;
  life.pinned_until = keep.until;
  life.pinned_bytes = bytes;
}

void PrefixCache::unpin(Life& life) {
  if (!life.pinned) return;
  life.pinned = false;
  pinned_bytes_ -= life.pinned_bytes;
  const auto held = pinned_by_.find(life.tenant);
  if ((held->second -= life.pinned_bytes) == 0) pinned_by_.erase(held);
}

bool PrefixCache::frees(const Item& item) const {
  if (!is_block(item)) return snapshot_of(item).snapshot->own_bytes() > 0;
  return std::ranges::any_of(item.node->pages, [&](PageId page) { return cache_->pool().references(page) == 1; });
}

std::vector<PrefixCache::Share*> PrefixCache::largest_first() {
  std::vector<Share*> shares;
  for (auto& [tenant, share] : shares_)
    if (!share.order.empty()) shares.push_back(&share);
  std::ranges::stable_sort(shares, std::ranges::greater(), [](const Share* share) { return share->bytes; });
  return shares;
}

bool PrefixCache::evict_one() {
  const std::vector<Share*> shares = largest_first();
  for (const bool pinned : {false, true})
    for (const Share* share : shares) {
      const auto found =
          std::ranges::find_if(share->order, [&](const Item& item) { return item.pinned == pinned && frees(item); });
      if (found == share->order.end()) continue;
      evict(Item(*found), PrefixMiss::kEvicted);
      return true;
    }
  // A sequence that dropped its first tokens may share a block behind pages that only the cache holds: these go once
  // that block has gone.
  if (shares.empty() || cache_->pool().cached().only_pages == 0) return false;
  evict(Item(*shares.front()->order.begin()), PrefixMiss::kEvicted);
  return true;
}

void PrefixCache::clear() {
  for (auto& [tenant, share] : shares_)
    while (!share.order.empty()) evict(Item(*share.order.begin()), PrefixMiss::kEvicted);
}

std::uint64_t PrefixCache::bytes_of(int tenant) const {
  const auto share = shares_.find(tenant);
  return share == shares_.end() ? 0 : share->second.bytes;
}

void PrefixCache::evict_chain(const Item& item, PrefixMiss why, const std::function<bool(const Node&)>& goes) {
  // A block before one with pages has pages, so that it stays in the tree.
  Node* parent = is_block(item) ? item.node->parent : nullptr;
  evict(item, why);
  while (parent != nullptr && in_order(*parent) && goes(*parent)) {
    Node* const block = std::exchange(parent, parent->parent);
    evict(item_of(block, block->life), why);
  }
}

void PrefixCache::discard(const PrefixSpace& space, std::span<const TokenId> tokens) {
  const Root* root = root_of(space);
  if (root == nullptr || std::ssize(tokens) < slots_) return;
  std::uint64_t hash = 0;
  const Node* const first = child_of(*root, nullptr, block(tokens, 0), &hash);
  if (first == nullptr) return;
  std::vector<Item> behind;
  for (const Item& item : shares_.at(root->tenant).order) {
    const Node* node = item.node;
    while (node->parent != nullptr) node = node->parent;
    if (node == first) behind.push_back(item);
  }
  for (const Item& item : behind) evict_chain(item, PrefixMiss::kEvicted, [](const Node&) { return true; });
}

void PrefixCache::expire(double now) {
  if (now < first_expiry_) return;
  first_expiry_ = std::numeric_limits<double>::infinity();
  std::vector<Item> ended;
  for (const auto& [tenant, share] : shares_)
    for (const Item& item : share.order) {
      if (const double ends_at = ends(life_of(item)); ends_at <= now) {
        ended.push_back(item);
      } else {
        first_expiry_ = std::min(first_expiry_, ends_at);
      }
    }
  // A block goes when those behind it are gone, which its own time does not outlive.
  const auto goes = [now](const Node& block) { return block.life.until <= now; };
  for (const Item& item : ended) {
    if (Life& life = life_of(item); life.until > now) {
      leave(item.node, life);
      unpin(life);
      enter(item.node, life);
    } else {
      evict_chain(item, PrefixMiss::kExpired, goes);
    }
  }
}

void PrefixCache::keep_within_bound() {
  while (bytes() > most_bytes_) {
    if (evict_one()) continue;
    // What is shared with sequences counts too, so that the bound holds when they have gone.
    const std::vector<Share*> shares = largest_first();
    if (shares.empty()) return;
    evict(Item(*shares.front()->order.begin()), PrefixMiss::kEvicted);
  }
}

std::uint64_t PrefixCache::evictable_bytes() const {
  return cache_->pool().cached().only_bytes + snapshot_bytes_;
}

std::uint64_t PrefixCache::bytes() const {
  return cache_->pool().cached().bytes + snapshot_bytes_ + charge_.bytes();
}

}  // namespace kvasir
