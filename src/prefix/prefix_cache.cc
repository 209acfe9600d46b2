#include "prefix/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvasir {
namespace {

// Approximate overhead of a map or set per element.
constexpr std::uint64_t kLinkBytes = 48;

std::uint64_t hash_tokens(std::span<const TokenId> tokens, std::uint64_t seed) {
  // 0 stands for no parent.
  return std::max<std::uint64_t>(hash64(std::as_bytes(tokens), seed), 1);
}

bool same(std::span<const TokenId> a, std::span<const TokenId> b) {
  return std::ranges::equal(a, b);
}

}  // namespace

std::string_view prefix_miss_name(PrefixMiss miss) {
  switch (miss) {
    case PrefixMiss::kNone: return "";
    case PrefixMiss::kShort: return "too_short";
    case PrefixMiss::kUnknown: return "unknown";
    case PrefixMiss::kEvicted: return "evicted";
    case PrefixMiss::kExpired: return "expired";
    case PrefixMiss::kPolicy: return "policy";
    case PrefixMiss::kNoRoom: return "no_room";
    case PrefixMiss::kCodec: return "codec";
  }
  return "";
}

PrefixCache::PrefixCache(KvCache* cache, std::uint64_t most_bytes)
    : cache_(cache),
      most_bytes_(most_bytes),
      slots_(cache->shape().page.slots),
      lanes_(static_cast<std::size_t>(cache->shape().all_lanes())),
      owner_(cache->pool().owners().add()),
      charge_(&cache->budget()) {
  cache->pool().mark_cached(owner_, {});
}

PrefixCache::~PrefixCache() {
  listener_ = nullptr;
  clear();
  cache_->pool().owners().remove(owner_);
}

std::uint64_t PrefixCache::node_bytes() const {
  return sizeof(Node) + static_cast<std::uint64_t>(slots_) * sizeof(TokenId) + lanes_ * sizeof(PageId) + kLinkBytes +
         sizeof(Item) + kLinkBytes;
}

std::uint64_t PrefixCache::structure_bytes(const Snapshot& snapshot) {
  return sizeof(Snapshot) + snapshot.lineage.size() + snapshot.tail.size() * sizeof(TokenId) + sizeof(Item) +
         kLinkBytes;
}

std::span<const TokenId> PrefixCache::block(std::span<const TokenId> tokens, std::int64_t number) const {
  return tokens.subspan(static_cast<std::size_t>(number * slots_), static_cast<std::size_t>(slots_));
}

// No codec's name has a NUL.
std::string PrefixCache::key_of(const PrefixSpace& space) {
  std::string key(space.codec);
  key += '\0';
  key += space.salt;
  return key;
}

std::uint64_t PrefixCache::root_hash(const PrefixSpace& space) {
  const std::uint64_t hash = hash64(std::as_bytes(std::span(space.salt)));
  return space.codec.empty() ? hash : hash64(std::as_bytes(std::span(space.codec)), hash);
}

const PrefixCache::Root* PrefixCache::root_of(const PrefixSpace& space) const {
  const auto found = roots_.find(key_of(space));
  return found == roots_.end() ? nullptr : found->second.get();
}

PrefixCache::Root* PrefixCache::make_root(const PrefixSpace& space, int tenant) {
  auto& root = roots_[key_of(space)];
  if (root == nullptr) {
    root = std::make_unique<Root>();
    root->salt = space.salt;
    root->codec = space.codec;
    root->tenant = tenant;
    shares_[tenant];
    root->hash = root_hash(space);
  }
  return root.get();
}

std::uint64_t PrefixCache::hash_of(const Root& root, const Node* parent, std::span<const TokenId> tokens) const {
  return hash_tokens(tokens, parent == nullptr ? root.hash : parent->hash);
}

// A hash alone is no proof: the tokens, the text before them and its salt are compared.
const PrefixCache::Node* PrefixCache::child_of(const Root& root, const Node* parent, std::span<const TokenId> tokens,
                                               std::uint64_t* hash) const {
  *hash = hash_of(root, parent, tokens);
  const auto found = nodes_.find(*hash);
  if (found == nodes_.end()) return nullptr;
  const Node* node = found->second.get();
  return node->root == &root && node->parent == parent && same(node->tokens, tokens) ? node : nullptr;
}

PrefixMatch PrefixCache::find(const PrefixQuery& query) const {
  PrefixMatch match;
  const auto length = static_cast<std::int64_t>(query.tokens.size());
  const std::int64_t blocks = length / slots_;
  const Root* root = root_of(query.space());
  Root none;
  none.hash = root_hash(query.space());
  if (root == nullptr) root = &none;
  const Node* node = nullptr;
  std::int64_t exact = 0;  // blocks
  std::int64_t known = 0;  // tokens of this text that were found in any form
  // The last place on the way that has lost something, and why; then why the text is not known any further.
  std::int64_t lost_at = 0;
  PrefixMiss lost = PrefixMiss::kNone;
  PrefixMiss end = PrefixMiss::kNone;
  bool paged = true;
  for (std::int64_t depth = 0; depth < blocks; ++depth) {
    std::uint64_t hash = 0;
    const Node* child = child_of(*root, node, block(query.tokens, depth), &hash);
    if (child == nullptr) {
      end = reason(hash);
      break;
    }
    node = child;
    const bool expired = !node->pages.empty() && node->life.until <= query.now;
    const PrefixMiss why = expired ? PrefixMiss::kExpired : node->pages.empty() ? reason(hash) : PrefixMiss::kNone;
    if (why != PrefixMiss::kNone) {
      lost = why;
      lost_at = (depth + 1) * slots_;
    }
    paged = paged && !node->pages.empty() && !expired;
    if (paged) exact = depth + 1;
    known = paged ? (depth + 1) * slots_ : known;
    const std::int64_t here = (depth + 1) * slots_;
    for (const Snapshot& snapshot : node->snapshots) {
      const std::int64_t tokens = here + std::ssize(snapshot.tail);
      if (tokens > length) continue;
      if (!same(snapshot.tail, query.tokens.subspan(static_cast<std::size_t>(here), snapshot.tail.size()))) continue;
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
  std::int64_t usable = std::min(exact * slots_, query.most_exact / slots_ * slots_);
  // Both a multiple of the pages' slots and of the policy's own.
  while (usable > 0 && usable % query.exact_multiple != 0) usable -= slots_;
  if (usable >= match.tokens) {
    match.tokens = usable;
    match.snapshot = nullptr;
  }
  const std::int64_t most = std::max(query.most_exact / slots_ * slots_, query.most_snapshot);
  if (most < slots_) {
    match.miss = PrefixMiss::kShort;
  } else if (match.tokens >= most / slots_ * slots_) {
    match.miss = PrefixMiss::kNone;
  } else {
    match.miss = known > match.tokens                                  ? PrefixMiss::kPolicy
                 : lost != PrefixMiss::kNone && lost_at > match.tokens ? lost
                 : end != PrefixMiss::kNone                            ? end
                                                                       : PrefixMiss::kUnknown;
  }
  return match;
}

void PrefixCache::enter(Node* node, const Life& life) {
  share_of(node).order.insert(item_of(node, life));
  first_expiry_ = std::min(first_expiry_, ends(life));
}

void PrefixCache::use(Node* node, Life& life) {
  const bool listed = &life != &node->life || in_order(*node);
  if (listed) leave(node, life);
  life.used = ++clock_;
  if (listed) enter(node, life);
}

void PrefixCache::keep_for(Node* node, Life& life, const PrefixKeep& keep, std::uint64_t bytes) {
  const bool listed = &life != &node->life || in_order(*node);
  if (listed) leave(node, life);
  life.used = ++clock_;
  pin(life, keep, bytes);
  life.until = std::max(life.until, keep.until);
  if (listed) enter(node, life);
}

std::vector<PageId> PrefixCache::pages(const PrefixQuery& query, std::int64_t tokens) {
  std::vector<PageId> all;
  const Root* root = root_of(query.space());
  const Node* node = nullptr;
  for (std::int64_t depth = 0; depth < tokens / slots_; ++depth) {
    std::uint64_t hash = 0;
    node = child_of(*root, node, block(query.tokens, depth), &hash);
    KVASIR_CHECK(node != nullptr && !node->pages.empty());
    all.insert(all.end(), node->pages.begin(), node->pages.end());
    Node* used = nodes_.find(hash)->second.get();
    use(used, used->life);
  }
  return all;
}

void PrefixCache::touch(const PrefixQuery& query, const PrefixSnapshot& snapshot) {
  const Root* root = root_of(query.space());
  const Node* node = nullptr;
  for (std::int64_t depth = 0; (depth + 1) * slots_ <= std::ssize(query.tokens); ++depth) {
    std::uint64_t hash = 0;
    node = root == nullptr ? nullptr : child_of(*root, node, block(query.tokens, depth), &hash);
    if (node == nullptr) return;
    Node* here = nodes_.find(hash)->second.get();
    for (Snapshot& each : here->snapshots)
      if (each.snapshot.get() == &snapshot) return use(here, each.life);
  }
}

PrefixCache::Node* PrefixCache::make_child(Root& root, Node* parent, std::span<const TokenId> tokens) {
  const std::uint64_t hash = hash_of(root, parent, tokens);
  if (nodes_.contains(hash)) return nullptr;  // another text has it
  if (!charge_.try_resize(charge_.bytes() + node_bytes())) return nullptr;
  auto node = std::make_unique<Node>();
  node->root = &root;
  node->parent = parent;
  node->hash = hash;
  node->depth = parent == nullptr ? 1 : parent->depth + 1;
  node->tokens.assign(tokens.begin(), tokens.end());
  node->life.number = ++numbers_;
  Node* made = node.get();
  nodes_.emplace(hash, std::move(node));
  forget(hash);
  ++root.nodes;
  if (parent != nullptr) ++parent->children;
  return made;
}

void PrefixCache::add_pages(const PrefixSpace& space, std::span<const TokenId> tokens, const KvSequence& sequence,
                            const PrefixKeep& keep) {
  const std::int64_t blocks = std::min(std::ssize(tokens) / slots_, sequence.whole_columns());
  if (blocks == 0) return;
  add(space, tokens, blocks, keep, [&](std::int64_t block, std::vector<PageId>& pages) {
    sequence.add_pages_of_whole(block, pages);
    return true;
  });
}

std::int64_t PrefixCache::blocks_held(const PrefixSpace& space, std::span<const TokenId> tokens) const {
  const Root* root = root_of(space);
  const Node* node = nullptr;
  std::int64_t depth = 0;
  for (; root != nullptr && (depth + 1) * slots_ <= std::ssize(tokens); ++depth) {
    std::uint64_t hash = 0;
    node = child_of(*root, node, block(tokens, depth), &hash);
    if (node == nullptr || node->pages.empty()) break;
  }
  return depth;
}

std::vector<PageId> PrefixCache::pages_of_blocks(const PrefixSpace& space, std::span<const TokenId> tokens,
                                                 std::int64_t first, std::int64_t blocks) const {
  std::vector<PageId> all;
  const Root* root = root_of(space);
  const Node* node = nullptr;
  for (std::int64_t depth = 0; root != nullptr && depth < first + blocks; ++depth) {
    std::uint64_t hash = 0;
    node = child_of(*root, node, block(tokens, depth), &hash);
    if (node == nullptr || node->pages.empty()) return {};
    if (depth >= first) all.insert(all.end(), node->pages.begin(), node->pages.end());
  }
  return all;
}

bool PrefixCache::add_blocks(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t first,
                             std::span<const PageId> pages, const PrefixKeep& keep) {
  const std::int64_t blocks = std::ssize(tokens) / slots_;
  const std::int64_t added = add(space, tokens, blocks, keep, [&](std::int64_t block, std::vector<PageId>& of_block) {
    if (block < first) return false;
    const std::span<const PageId> these = pages.subspan(static_cast<std::size_t>(block - first) * lanes_, lanes_);
    of_block.assign(these.begin(), these.end());
    return true;
  });
  return added == blocks && !pages_of_blocks(space, tokens, blocks - 1, 1).empty();
}

std::int64_t PrefixCache::add(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t blocks,
                              const PrefixKeep& keep,
                              const std::function<bool(std::int64_t, std::vector<PageId>&)>& pages_of) {
  Root* root = make_root(space, keep.tenant);
  Node* parent = nullptr;
  std::int64_t depth = 0;
  for (; depth < blocks; ++depth) {
    std::uint64_t hash = 0;
    const auto of_block = block(tokens, depth);
    Node* node = child_of(*root, parent, of_block, &hash) != nullptr ? nodes_.find(hash)->second.get()
                                                                     : make_child(*root, parent, of_block);
    if (node == nullptr) break;
    if (node->pages.empty()) {
      if (parent != nullptr && parent->pages.empty()) break;
      if (!pages_of(depth, node->pages)) {
        remove_if_bare(node, PrefixMiss::kNone);
        break;
      }
      ++version_;
      for (const PageId page : node->pages) cache_->pool().retain(page, owner_);
      if (parent != nullptr) {
        if (in_order(*parent)) leave(parent, parent->life);
        ++parent->paged_children;
      }
      share_of(node).bytes += block_bytes(*node);
      node->life.used = ++clock_;
      pin(node->life, keep, block_bytes(*node));
      node->life.until = keep.until;
      enter(node, node->life);
      forget(hash);
      if (listener_ != nullptr)
        listener_->stored(node->hash, parent == nullptr ? 0 : parent->hash, node->tokens, root->salt, root->codec);
    } else {
      keep_for(node, node->life, keep, block_bytes(*node));
    }
    parent = node;
  }
  if (const auto found = roots_.find(key_of(space)); found != roots_.end() && found->second->nodes == 0)
    roots_.erase(found);
  keep_within_bound();
  return depth;
}

void PrefixCache::add_snapshot(const PrefixSpace& space, std::string_view lineage, std::span<const TokenId> tokens,
                               std::unique_ptr<PrefixSnapshot> snapshot, const PrefixKeep& keep) {
  const std::int64_t blocks = std::ssize(tokens) / slots_;
  if (blocks == 0) return;
  Root* root = make_root(space, keep.tenant);
  Node* node = nullptr;
  for (std::int64_t depth = 0; depth < blocks; ++depth) {
    std::uint64_t hash = 0;
    const auto of_block = block(tokens, depth);
    Node* child = child_of(*root, node, of_block, &hash) != nullptr ? nodes_.find(hash)->second.get()
                                                                    : make_child(*root, node, of_block);
    if (child == nullptr) {
      if (node != nullptr) remove_if_bare(node, PrefixMiss::kNone);
      if (node == nullptr && root->nodes == 0) erase_root(*root);
      return;
    }
    node = child;
  }
  const auto tail = tokens.subspan(static_cast<std::size_t>(blocks * slots_));
  Snapshot added{std::string(lineage), {tail.begin(), tail.end()}, std::move(snapshot), {}, 0, 0};
  const std::uint64_t bytes = added.bytes = added.snapshot->bytes_with_pages();
  added.charged = structure_bytes(added);
  ++version_;
  forget(node->hash);
  for (std::size_t i = 0; i < node->snapshots.size(); ++i) {
    Snapshot& old = node->snapshots[i];
    if (old.lineage != lineage || !same(old.tail, tail)) continue;
    snapshot_bytes_ += added.snapshot->own_bytes() - old.snapshot->own_bytes();
    share_of(node).bytes += bytes - old.bytes;
    old.bytes = bytes;
    old.snapshot = std::move(added.snapshot);
    keep_for(node, old.life, keep, bytes);
    return keep_within_bound();
  }
  if (!charge_.try_resize(charge_.bytes() + added.charged)) return remove_if_bare(node, PrefixMiss::kNone);
  added.life.number = ++numbers_;
  added.life.used = ++clock_;
  added.life.until = keep.until;
  pin(added.life, keep, bytes);
  enter(node, added.life);
  snapshot_bytes_ += added.snapshot->own_bytes();
  share_of(node).bytes += bytes;
  node->snapshots.push_back(std::move(added));
  keep_within_bound();
}

void PrefixCache::remove_if_bare(Node* node, PrefixMiss why) {
  while (node != nullptr && node->children == 0 && node->pages.empty() && node->snapshots.empty()) {
    Node* parent = node->parent;
    Root* root = node->root;
    if (parent != nullptr) --parent->children;
    if (why != PrefixMiss::kNone) remember(node->hash, why);
    nodes_.erase(node->hash);
    KVASIR_CHECK(charge_.try_resize(charge_.bytes() - node_bytes()));
    if (--root->nodes == 0) erase_root(*root);
    node = parent;
  }
}

}  // namespace kvasir
