#include "prefix/prefix_order.h"

namespace kvasir {

std::vector<PrefixOrder::Share*> PrefixOrder::largest_first() {
  std::vector<Share*> shares;
  for (auto& [tenant, share] : shares_)
    if (!share.order.empty()) shares.push_back(&share);
  std::ranges::stable_sort(shares, std::ranges::greater(), [](const Share* share) { return share->bytes; });
  return shares;
}

void PrefixOrder::enter(Node* node, const Life& life) {
  share_of(node).order.insert(item_of(node, life));
  first_end_ = std::min(first_end_, ends(life));
}

void PrefixOrder::begin(Node* node, Life& life, const PrefixKeep& keep, std::uint64_t bytes) {
  life.used = ++clock_;
  pin(life, keep, bytes);
  life.until = keep.until;
  enter(node, life);
}

void PrefixOrder::use(Node* node, Life& life) {
  const bool listed = &life != &node->life || node->in_order();
  if (listed) leave(node, life);
  life.used = ++clock_;
  if (listed) enter(node, life);
}

void PrefixOrder::keep_for(Node* node, Life& life, const PrefixKeep& keep, std::uint64_t bytes) {
  const bool listed = &life != &node->life || node->in_order();
  if (listed) leave(node, life);
  life.used = ++clock_;
  pin(life, keep, bytes);
  life.until = std::max(life.until, keep.until);
  if (listed) enter(node, life);
}

void PrefixOrder::pin(Life& life, const PrefixKeep& keep, std::uint64_t bytes) {
  if (!keep.pinned) return;
  if (life.pinned) {
    life.pinned_until = std::max(life.pinned_until, keep.until);
    return;
  }
  const auto held = pinned_by_.find(keep.tenant);
  const std::uint64_t pinned = (held == pinned_by_.end() ? 0 : held->second) + bytes;
  if (pinned > most_bytes_ || pinned_bytes_ + bytes > most_bytes_ - pinned) return;
  pinned_by_[keep.tenant] = pinned;
  pinned_bytes_ += bytes;
  life.pinned = true;
  life.tenant = keep.tenant;
  life.pinned_until = keep.until;
  life.pinned_bytes = bytes;
}

void PrefixOrder::unpin(Life& life) {
  if (!life.pinned) return;
  life.pinned = false;
  pinned_bytes_ -= life.pinned_bytes;
  const auto held = pinned_by_.find(life.tenant);
  if ((held->second -= life.pinned_bytes) == 0) pinned_by_.erase(held);
}

std::vector<PrefixOrder::Item> PrefixOrder::ended(double now) {
  std::vector<Item> ended;
  if (now < first_end_) return ended;
  first_end_ = std::numeric_limits<double>::infinity();
  for (const auto& [tenant, share] : shares_)
    for (const Item& item : share.order) {
      if (const double ends_at = ends(item.life()); ends_at <= now)
        ended.push_back(item);
      else
        first_end_ = std::min(first_end_, ends_at);
    }
  return ended;
}

}  // namespace kvasir
