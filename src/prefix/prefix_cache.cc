#include "prefix/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvasir {

PrefixCache::PrefixCache(KvCache* cache, std::uint64_t most_bytes)
    : cache_(cache),
      most_bytes_(most_bytes),
      owner_(cache->pool().owners().add()),
      tree_(cache),
      order_(std::min(most_bytes, cache->budget().capacity())) {
  cache->pool().mark_cached(owner_, {});
}

PrefixCache::~PrefixCache() {
  listener_ = nullptr;
  clear();
  cache_->pool().owners().remove(owner_);
}

PrefixMatch PrefixCache::find(const PrefixQuery& query) const {
  PrefixMatch match;
  const auto length = static_cast<std::int64_t>(query.tokens.size());
  const std::int64_t slots = tree_.slots();
  const std::int64_t blocks = length / slots;
  const PrefixTree::Root* root = tree_.root_of(query.space());
  PrefixTree::Root none;
  none.hash = PrefixTree::root_hash(query.space());
  if (root == nullptr) root = &none;
  const Node* node = nullptr;
  std::int64_t exact = 0;  // blocks
  std::int64_t known = 0;  // tokens of this text that were found in any form
  // The last place of the text at which the cache has lost something, and why; and why the search ended.
  std::int64_t lost_at = 0;
  PrefixMiss lost = PrefixMiss::kNone;
  PrefixMiss end = PrefixMiss::kNone;
  bool paged = true;
  for (std::int64_t depth = 0; depth < blocks; ++depth) {
    std::uint64_t hash = 0;
    const Node* child = tree_.child_of(*root, node, tree_.block(query.tokens, depth), &hash);
    if (child == nullptr) {
      end = tree_.gone().reason(hash);
      break;
    }
    node = child;
    const bool expired = !node->pages.empty() && node->life.until <= query.now;
    const PrefixMiss why = expired               ? PrefixMiss::kExpired
                           : node->pages.empty() ? tree_.gone().reason(hash)
                                                 : PrefixMiss::kNone;
    if (why != PrefixMiss::kNone) {
      lost = why;
      lost_at = (depth + 1) * slots;
    }
    paged = paged && !node->pages.empty() && !expired;
    if (paged) exact = depth + 1;
    known = paged ? (depth + 1) * slots : known;
    const std::int64_t here = (depth + 1) * slots;
    for (const Snapshot& snapshot : node->snapshots) {
      const std::int64_t tokens = here + std::ssize(snapshot.tail);
      if (tokens > length) continue;
      if (!std::ranges::equal(snapshot.tail,
                              query.tokens.subspan(static_cast<std::size_t>(here), snapshot.tail.size())))
        continue;
      if (snapshot.life.until <= query.now) {
        lost = PrefixMiss::kExpired;
        lost_at = tokens;
        continue;
      }
      known = std::max(known, tokens);
      if (snapshot.lineage != query.lineage || tokens > query.most_snapshot || tokens <= match.tokens) continue;
      match.tokens = tokens;
      match.snapshot = snapshot.snapshot;
    }
  }
  std::int64_t usable = std::min(exact * slots, query.most_exact / slots * slots);
  // A multiple of both the pages' slots and query.exact_multiple.
  while (usable > 0 && usable % query.exact_multiple != 0) usable -= slots;
  if (usable >= match.tokens) {
    match.tokens = usable;
    match.snapshot = nullptr;
  }
  const std::int64_t most = std::max(query.most_exact / slots * slots, query.most_snapshot);
  if (most < slots) {
    match.miss = PrefixMiss::kShort;
  } else if (match.tokens >= most / slots * slots) {
    match.miss = PrefixMiss::kNone;
  } else {
    match.miss = known > match.tokens                                  ? PrefixMiss::kPolicy
                 : lost != PrefixMiss::kNone && lost_at > match.tokens ? lost
                 : end != PrefixMiss::kNone                            ? end
                                                                       : PrefixMiss::kUnknown;
  }
  return match;
}

std::vector<PageId> PrefixCache::pages(const PrefixQuery& query, std::int64_t tokens) {
  std::vector<PageId> all;
  const std::int64_t blocks = tokens / tree_.slots();
  tree_.walk(query.space(), query.tokens.first(static_cast<std::size_t>(blocks * tree_.slots())), [&](Node& node) {
    all.insert(all.end(), node.pages.begin(), node.pages.end());
    order_.use(&node, node.life);
    return true;
  });
  KVASIR_CHECK(all.size() == static_cast<std::size_t>(blocks) * tree_.lanes());
  return all;
}

void PrefixCache::touch(const PrefixQuery& query, const PrefixSnapshot& snapshot) {
  tree_.walk(query.space(), query.tokens, [&](Node& node) {
    const auto found =
        std::ranges::find_if(node.snapshots, [&](const Snapshot& each) { return each.snapshot.get() == &snapshot; });
    if (found != node.snapshots.end()) order_.use(&node, found->life);
    return found == node.snapshots.end();
  });
}

void PrefixCache::add_pages(const PrefixSpace& space, std::span<const TokenId> tokens, const KvSequence& sequence,
                            const PrefixKeep& keep) {
  const std::int64_t blocks = std::min(std::ssize(tokens) / tree_.slots(), sequence.whole_columns());
  if (blocks == 0) return;
  add(space, tokens, blocks, keep, [&](std::int64_t block, std::vector<PageId>& pages) {
    sequence.add_pages_of_whole(block, pages);
    return true;
  });
}

std::int64_t PrefixCache::blocks_held(const PrefixSpace& space, std::span<const TokenId> tokens) const {
  std::int64_t blocks = 0;
  tree_.walk(space, tokens, [&](const Node& node) { return !node.pages.empty() && ++blocks > 0; });
  return blocks;
}

std::vector<PageId> PrefixCache::pages_of_blocks(const PrefixSpace& space, std::span<const TokenId> tokens,
                                                 std::int64_t first, std::int64_t blocks) const {
  std::vector<PageId> all;
  const auto end = static_cast<std::size_t>((first + blocks) * tree_.slots());
  tree_.walk(space, tokens.first(end), [&](const Node& node) {
    if (node.depth > first) all.insert(all.end(), node.pages.begin(), node.pages.end());
    return !node.pages.empty();
  });
  if (all.size() < static_cast<std::size_t>(blocks) * tree_.lanes()) all.clear();
  return all;
}

bool PrefixCache::add_blocks(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t first,
                             std::span<const PageId> pages, const PrefixKeep& keep) {
  const std::int64_t blocks = std::ssize(tokens) / tree_.slots();
  const std::int64_t added = add(space, tokens, blocks, keep, [&](std::int64_t block, std::vector<PageId>& of_block) {
    if (block < first) return false;
    const std::span<const PageId> these =
        pages.subspan(static_cast<std::size_t>(block - first) * tree_.lanes(), tree_.lanes());
    of_block.assign(these.begin(), these.end());
    return true;
  });
  return added == blocks && !pages_of_blocks(space, tokens, blocks - 1, 1).empty();
}

std::int64_t PrefixCache::add(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t blocks,
                              const PrefixKeep& keep,
                              const std::function<bool(std::int64_t, std::vector<PageId>&)>& pages_of) {
  PrefixTree::Root& root = tree_.make_root(space, keep.tenant);
  Node* parent = nullptr;
  std::int64_t depth = 0;
  for (; depth < blocks; ++depth) {
    Node* node = tree_.child_or_new(root, parent, tree_.block(tokens, depth));
    if (node == nullptr) break;
    if (node->pages.empty()) {
      if (parent != nullptr && parent->pages.empty()) break;
      if (!pages_of(depth, node->pages)) {
        tree_.remove_if_bare(node, PrefixMiss::kNone);
        break;
      }
      ++version_;
      for (const PageId page : node->pages) cache_->pool().retain(page, owner_);
      if (parent != nullptr) {
        if (parent->in_order()) order_.leave(parent, parent->life);
        ++parent->paged_children;
      }
      order_.share_of(node).bytes += tree_.block_bytes(*node);
      order_.begin(node, node->life, keep, tree_.block_bytes(*node));
      tree_.gone().forget(node->hash);
      if (listener_ != nullptr) tell_stored(*node);
    } else {
      order_.keep_for(node, node->life, keep, tree_.block_bytes(*node));
    }
    parent = node;
  }
  tree_.remove_if_empty(space);
  keep_within_bound();
  return depth;
}

void PrefixCache::add_snapshot(const PrefixSpace& space, std::string_view lineage, std::span<const TokenId> tokens,
                               std::unique_ptr<PrefixSnapshot> snapshot, const PrefixKeep& keep) {
  const std::int64_t blocks = std::ssize(tokens) / tree_.slots();
  if (blocks == 0) return;
  PrefixTree::Root& root = tree_.make_root(space, keep.tenant);
  Node* node = nullptr;
  for (std::int64_t depth = 0; depth < blocks; ++depth) {
    Node* child = tree_.child_or_new(root, node, tree_.block(tokens, depth));
    if (child == nullptr)
      return node != nullptr ? tree_.remove_if_bare(node, PrefixMiss::kNone) : tree_.remove_if_empty(space);
    node = child;
  }
  const auto tail = tokens.subspan(static_cast<std::size_t>(blocks * tree_.slots()));
  Snapshot added{std::string(lineage), {tail.begin(), tail.end()}, std::move(snapshot), {}, 0, 0};
  const std::uint64_t bytes = added.bytes = added.snapshot->bytes_with_pages();
  added.charged = PrefixTree::structure_bytes(added);
  ++version_;
  tree_.gone().forget(node->hash);
  for (std::size_t i = 0; i < node->snapshots.size(); ++i) {
    Snapshot& old = node->snapshots[i];
    if (old.lineage != lineage || !std::ranges::equal(old.tail, tail)) continue;
    snapshot_bytes_ += added.snapshot->own_bytes() - old.snapshot->own_bytes();
    order_.share_of(node).bytes += bytes - old.bytes;
    old.bytes = bytes;
    old.snapshot = std::move(added.snapshot);
    order_.keep_for(node, old.life, keep, bytes);
    return keep_within_bound();
  }
  if (!tree_.try_charge(added.charged)) return tree_.remove_if_bare(node, PrefixMiss::kNone);
  added.life.number = tree_.next_number();
  order_.begin(node, added.life, keep, bytes);
  snapshot_bytes_ += added.snapshot->own_bytes();
  order_.share_of(node).bytes += bytes;
  node->snapshots.push_back(std::move(added));
  keep_within_bound();
}

}  // namespace kvasir
