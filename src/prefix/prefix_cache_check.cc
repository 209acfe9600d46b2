// The listener of a prefix cache, and the checks of its structures.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "prefix/prefix_cache.h"

namespace kvasir {

void PrefixCache::set_listener(PrefixListener* listener) {
  listener_ = listener;
  if (listener_ == nullptr) return;
  std::vector<const Node*> held;
  for (const auto& [hash, node] : tree_.nodes())
    if (!node->pages.empty()) held.push_back(node.get());
  std::ranges::sort(held, {}, [](const Node* node) { return std::pair(node->depth, node->life.number); });
  for (const Node* node : held) tell_stored(*node);
}

void PrefixCache::tell_stored(const Node& node) const {
  listener_->stored(node.hash, node.parent == nullptr ? 0 : node.parent->hash, node.tokens, node.root->salt,
                    node.root->codec, node.root->adapters);
}

void PrefixCache::count_references(PageCounts& references) const {
  for (const auto& [hash, node] : tree_.nodes())
    for (const PageId page : node->pages) ++references[page];
}

void PrefixCache::check_invariants() const {
  std::uint64_t charged = 0;
  std::uint64_t own = 0;
  std::size_t items = 0;
  std::unordered_map<int, std::uint64_t> pinned_by, bytes_of;
  const auto count_pin = [&](const Life& life) {
    if (life.pinned) pinned_by[life.tenant] += life.pinned_bytes;
  };
  std::unordered_map<const Node*, std::int64_t> children, paged;
  std::unordered_map<const PrefixTree::Root*, std::int64_t> of_root;
  for (const auto& [hash, node] : tree_.nodes()) {
    KVASIR_CHECK(node->hash == hash && (node->pages.empty() || node->pages.size() == tree_.lanes()));
    KVASIR_CHECK(node->pages.empty() || node->parent == nullptr || !node->parent->pages.empty());
    KVASIR_CHECK(!node->pages.empty() || !node->snapshots.empty() || node->children > 0);
    charged += tree_.node_bytes();
    KVASIR_CHECK(!node->life.pinned || !node->pages.empty());
    count_pin(node->life);
    if (!node->pages.empty()) bytes_of[node->root->tenant] += tree_.block_bytes(*node);
    items += (node->in_order() ? 1 : 0) + node->snapshots.size();
    for (const Snapshot& snapshot : node->snapshots) {
      charged += snapshot.charged;
      own += snapshot.snapshot->own_bytes();
      bytes_of[node->root->tenant] += snapshot.bytes;
      count_pin(snapshot.life);
    }
    ++of_root[node->root];
    if (node->parent == nullptr) continue;
    ++children[node->parent];
    if (!node->pages.empty()) ++paged[node->parent];
  }
  for (const auto& [hash, node] : tree_.nodes()) {
    KVASIR_CHECK(node->children == children[node.get()]);
    KVASIR_CHECK(node->paged_children == paged[node.get()]);
  }
  for (const auto& [key, root] : tree_.roots()) KVASIR_CHECK(root->nodes == of_root[root.get()] && root->nodes > 0);
  std::size_t ordered = 0;
  for (const auto& [tenant, share] : order_.shares()) {
    ordered += share.order.size();
    KVASIR_CHECK(share.bytes == bytes_of[tenant]);
  }
  KVASIR_CHECK(of_root.size() == tree_.roots().size() && items == ordered);
  std::uint64_t pinned = 0;
  for (const auto& [tenant, bytes] : pinned_by) pinned += bytes;
  KVASIR_CHECK(pinned_by == order_.pinned_by() && pinned == order_.pinned_bytes());
  tree_.gone().check_invariants();
  KVASIR_CHECK(own == snapshot_bytes_ && charged == tree_.charged_bytes());
  cache_->pool().check_invariants();
}

}  // namespace kvasir
