#include "prefix/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvasir {
namespace {

// What a map or a set takes for an element beside the element itself, about.
constexpr std::uint64_t kLinkBytes = 48;
// Blocks that are remembered after they went.
constexpr std::size_t kMostGone = 16384;

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
  }
  return "";
}

PrefixCache::PrefixCache(KvCache* cache, std::uint64_t most_bytes)
    : cache_(cache),
      most_bytes_(most_bytes),
      slots_(cache->shape().page.slots),
      lanes_(static_cast<std::size_t>(cache->shape().lanes())),
      owner_(cache->pool().add_owner()),
      charge_(&cache->budget()) {
  cache->pool().mark_cached(owner_, {});
}

PrefixCache::~PrefixCache() {
  listener_ = nullptr;
  clear();
  cache_->pool().remove_owner(owner_);
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

const PrefixCache::Root* PrefixCache::root_of(std::string_view salt) const {
  const auto found = roots_.find(std::string(salt));
  return found == roots_.end() ? nullptr : found->second.get();
}

PrefixCache::Root* PrefixCache::make_root(std::string_view salt) {
  auto& root = roots_[std::string(salt)];
  if (root == nullptr) {
    root = std::make_unique<Root>();
    root->salt = salt;
    root->hash = hash64(std::as_bytes(std::span(salt)));
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
  const Root* root = root_of(query.salt);
  Root none;
  none.hash = hash64(std::as_bytes(std::span(query.salt)));
  if (root == nullptr) root = &none;
  const Node* node = nullptr;
  std::int64_t exact = 0;  // blocks
  std::int64_t known = 0;  // tokens of this text that were found in any form
  PrefixMiss miss = PrefixMiss::kNone;
  bool paged = true;
  for (std::int64_t depth = 0; depth < blocks; ++depth) {
    std::uint64_t hash = 0;
    const Node* child = child_of(*root, node, block(query.tokens, depth), &hash);
    if (child == nullptr) {
      const auto gone = gone_.find(hash);
      if (miss == PrefixMiss::kNone) miss = gone == gone_.end() ? PrefixMiss::kUnknown : gone->second;
      break;
    }
    node = child;
    const bool expired = !node->pages.empty() && node->life.until <= query.now;
    if (paged && expired) miss = PrefixMiss::kExpired;
    paged = paged && !node->pages.empty() && !expired;
    if (paged) exact = depth + 1;
    known = paged ? (depth + 1) * slots_ : known;
    const std::int64_t here = (depth + 1) * slots_;
    for (const Snapshot& snapshot : node->snapshots) {
      const std::int64_t tokens = here + std::ssize(snapshot.tail);
      if (tokens > length || snapshot.life.until <= query.now) continue;
      if (!same(snapshot.tail, query.tokens.subspan(static_cast<std::size_t>(here), snapshot.tail.size()))) continue;
      known = std::max(known, tokens);
      if (snapshot.lineage != query.lineage || tokens > query.most_snapshot || tokens <= match.tokens) continue;
      match.tokens = tokens;
      match.snapshot = snapshot.snapshot.get();
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
    match.miss = known > match.tokens ? PrefixMiss::kPolicy : miss == PrefixMiss::kNone ? PrefixMiss::kUnknown : miss;
  }
  return match;
}

void PrefixCache::use(Node* node, Life& life) {
  const bool listed = &life != &node->life || in_order(*node);
  if (listed) leave(node, life);
  life.used = ++clock_;
  if (listed) enter(node, life);
}

void PrefixCache::keep_for(Node* node, Life& life, const PrefixKeep& keep) {
  const bool listed = &life != &node->life || in_order(*node);
  if (listed) leave(node, life);
  life.used = ++clock_;
  life.pinned = life.pinned || keep.pinned;
  life.until = std::max(life.until, keep.until);
  first_expiry_ = std::min(first_expiry_, life.until);
  if (listed) enter(node, life);
}

std::vector<PageId> PrefixCache::pages(const PrefixQuery& query, std::int64_t tokens) {
  std::vector<PageId> all;
  const Root* root = root_of(query.salt);
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
  const Root* root = root_of(query.salt);
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
  ++root.nodes;
  if (parent != nullptr) ++parent->children;
  return made;
}

void PrefixCache::add_pages(std::string_view salt, std::span<const TokenId> tokens, const KvSequence& sequence,
                            const PrefixKeep& keep) {
  const std::int64_t blocks = std::min(std::ssize(tokens) / slots_, sequence.whole_columns());
  if (blocks == 0) return;
  Root* root = make_root(salt);
  Node* parent = nullptr;
  for (std::int64_t depth = 0; depth < blocks; ++depth) {
    std::uint64_t hash = 0;
    const auto of_block = block(tokens, depth);
    Node* node = child_of(*root, parent, of_block, &hash) != nullptr ? nodes_.find(hash)->second.get()
                                                                     : make_child(*root, parent, of_block);
    if (node == nullptr) break;
    if (node->pages.empty()) {
      if (parent != nullptr && parent->pages.empty()) break;
      ++version_;
      sequence.add_pages_of_whole(depth, node->pages);
      for (const PageId page : node->pages) cache_->pool().retain(page, owner_);
      if (parent != nullptr) {
        if (in_order(*parent)) leave(parent, parent->life);
        ++parent->paged_children;
      }
      node->life.used = ++clock_;
      node->life.pinned = keep.pinned;
      node->life.until = keep.until;
      first_expiry_ = std::min(first_expiry_, keep.until);
      enter(node, node->life);
      if (const auto gone = gone_.find(hash); gone != gone_.end()) {
        gone_order_.remove(hash);
        gone_.erase(gone);
      }
      if (listener_ != nullptr)
        listener_->stored(node->hash, parent == nullptr ? 0 : parent->hash, node->tokens, root->salt);
    } else {
      keep_for(node, node->life, keep);
    }
    parent = node;
  }
  if (root->nodes == 0) roots_.erase(std::string(root->salt));
  keep_within_bound();
}

void PrefixCache::add_snapshot(std::string_view salt, std::string_view lineage, std::span<const TokenId> tokens,
                               std::unique_ptr<PrefixSnapshot> snapshot, const PrefixKeep& keep) {
  const std::int64_t blocks = std::ssize(tokens) / slots_;
  if (blocks == 0) return;
  Root* root = make_root(salt);
  Node* node = nullptr;
  for (std::int64_t depth = 0; depth < blocks; ++depth) {
    std::uint64_t hash = 0;
    const auto of_block = block(tokens, depth);
    Node* child = child_of(*root, node, of_block, &hash) != nullptr ? nodes_.find(hash)->second.get()
                                                                    : make_child(*root, node, of_block);
    if (child == nullptr) {
      if (node != nullptr) remove_if_bare(node);
      if (node == nullptr && root->nodes == 0) roots_.erase(std::string(root->salt));
      return;
    }
    node = child;
  }
  const auto tail = tokens.subspan(static_cast<std::size_t>(blocks * slots_));
  Snapshot added{std::string(lineage), {tail.begin(), tail.end()}, std::move(snapshot), {}, 0};
  added.life = {keep.pinned, keep.until, ++clock_, ++numbers_};
  added.charged = structure_bytes(added);
  ++version_;
  first_expiry_ = std::min(first_expiry_, keep.until);
  for (std::size_t i = 0; i < node->snapshots.size(); ++i) {
    Snapshot& old = node->snapshots[i];
    if (old.lineage != lineage || !same(old.tail, tail)) continue;
    added.life.pinned = added.life.pinned || old.life.pinned;
    added.life.until = std::max(added.life.until, old.life.until);
    leave(node, old.life);
    snapshot_bytes_ += added.snapshot->own_bytes() - old.snapshot->own_bytes();
    old.snapshot = std::move(added.snapshot);
    old.life = added.life;
    enter(node, old.life);
    return keep_within_bound();
  }
  if (!charge_.try_resize(charge_.bytes() + added.charged)) return remove_if_bare(node);
  enter(node, added.life);
  snapshot_bytes_ += added.snapshot->own_bytes();
  node->snapshots.push_back(std::move(added));
  keep_within_bound();
}

// Removes nodes that hold nothing, from this one towards the root.
void PrefixCache::remove_if_bare(Node* node) {
  while (node != nullptr && node->children == 0 && node->pages.empty() && node->snapshots.empty()) {
    Node* parent = node->parent;
    Root* root = node->root;
    if (parent != nullptr) --parent->children;
    nodes_.erase(node->hash);
    KVASIR_CHECK(charge_.try_resize(charge_.bytes() - node_bytes()));
    if (--root->nodes == 0) roots_.erase(std::string(root->salt));
    node = parent;
  }
}

void PrefixCache::remember(std::uint64_t hash, PrefixMiss why) {
  if (!gone_.emplace(hash, why).second) return;
  gone_order_.push_back(hash);
  if (gone_order_.size() <= kMostGone) return;
  gone_.erase(gone_order_.front());
  gone_order_.pop_front();
}

void PrefixCache::evict(const Item& item, PrefixMiss why) {
  Node* node = item.node;
  ++version_;
  order_.erase(item);
  remember(node->hash, why);
  if (is_block(item)) {
    for (const PageId page : node->pages) cache_->pool().release(page, owner_);
    node->pages.clear();
    if (listener_ != nullptr) listener_->removed(node->hash);
    if (Node* parent = node->parent; parent != nullptr) {
      --parent->paged_children;
      if (in_order(*parent)) enter(parent, parent->life);
    }
  } else {
    const auto found = std::ranges::find(node->snapshots, item.number, [](const Snapshot& s) { return s.life.number; });
    KVASIR_CHECK(found != node->snapshots.end());
    KVASIR_CHECK(charge_.try_resize(charge_.bytes() - found->charged));
    snapshot_bytes_ -= found->snapshot->own_bytes();
    node->snapshots.erase(found);
  }
  remove_if_bare(node);
}

const PrefixCache::Snapshot& PrefixCache::snapshot_of(const Item& item) {
  const auto found =
      std::ranges::find(item.node->snapshots, item.number, [](const Snapshot& s) { return s.life.number; });
  KVASIR_CHECK(found != item.node->snapshots.end());
  return *found;
}

bool PrefixCache::frees(const Item& item) const {
  if (!is_block(item)) return snapshot_of(item).snapshot->own_bytes() > 0;
  return std::ranges::any_of(item.node->pages, [&](PageId page) { return cache_->pool().references(page) == 1; });
}

bool PrefixCache::evict_one() {
  if (order_.empty()) return false;
  auto found = std::ranges::find_if(order_, [&](const Item& item) { return frees(item); });
  if (found == order_.end()) {
    // Where a sequence dropped what came first, pages that only the cache holds stand before shared ones.
    if (cache_->pool().only_cached_pages() == 0) return false;
    found = order_.begin();
  }
  evict(Item(*found), PrefixMiss::kEvicted);
  return true;
}

void PrefixCache::clear() {
  while (!order_.empty()) evict(Item(*order_.begin()), PrefixMiss::kEvicted);
}

void PrefixCache::expire(double now) {
  if (now < first_expiry_) return;
  first_expiry_ = std::numeric_limits<double>::infinity();
  // A block goes when those behind it are gone, which its own time does not outlive.
  for (bool found = true; found;) {
    found = false;
    std::vector<Item> expired;
    for (const Item& item : order_) {
      double until = item.node->life.until;
      if (item.number != item.node->life.number)
        for (const Snapshot& snapshot : item.node->snapshots)
          if (snapshot.life.number == item.number) until = snapshot.life.until;
      if (until <= now) {
        expired.push_back(item);
      } else {
        first_expiry_ = std::min(first_expiry_, until);
      }
    }
    for (const Item& item : expired) evict(item, PrefixMiss::kExpired);
    found = !expired.empty();
  }
}

void PrefixCache::keep_within_bound() {
  while (bytes() > most_bytes_ && !order_.empty()) {
    // What is shared with sequences counts too, so that the bound holds when they have gone.
    if (!evict_one()) evict(Item(*order_.begin()), PrefixMiss::kEvicted);
  }
}

std::uint64_t PrefixCache::evictable_bytes() const {
  return cache_->pool().only_cached_pages() * cache_->pool().page_cost() + snapshot_bytes_;
}

std::uint64_t PrefixCache::bytes() const {
  return cache_->pool().cached_pages() * cache_->pool().page_cost() + snapshot_bytes_ + charge_.bytes();
}

void PrefixCache::set_listener(PrefixListener* listener) {
  listener_ = listener;
  if (listener_ == nullptr) return;
  std::vector<const Node*> held;
  for (const auto& [hash, node] : nodes_)
    if (!node->pages.empty()) held.push_back(node.get());
  std::ranges::sort(held, {}, [](const Node* node) { return std::pair(node->depth, node->life.number); });
  for (const Node* node : held)
    listener_->stored(node->hash, node->parent == nullptr ? 0 : node->parent->hash, node->tokens, node->root->salt);
}

void PrefixCache::count_references(std::span<std::uint32_t> references) const {
  for (const auto& [hash, node] : nodes_)
    for (const PageId page : node->pages) ++references[static_cast<std::size_t>(page)];
}

void PrefixCache::check_invariants() const {
  std::uint64_t charged = 0;
  std::uint64_t own = 0;
  std::size_t items = 0;
  std::unordered_map<const Node*, std::int64_t> children, paged;
  std::unordered_map<const Root*, std::int64_t> of_root;
  for (const auto& [hash, node] : nodes_) {
    KVASIR_CHECK(node->hash == hash && (node->pages.empty() || node->pages.size() == lanes_));
    KVASIR_CHECK(node->pages.empty() || node->parent == nullptr || !node->parent->pages.empty());
    KVASIR_CHECK(!node->pages.empty() || !node->snapshots.empty() || node->children > 0);
    charged += node_bytes();
    items += (in_order(*node) ? 1 : 0) + node->snapshots.size();
    for (const Snapshot& snapshot : node->snapshots) {
      charged += snapshot.charged;
      own += snapshot.snapshot->own_bytes();
    }
    ++of_root[node->root];
    if (node->parent == nullptr) continue;
    ++children[node->parent];
    if (!node->pages.empty()) ++paged[node->parent];
  }
  for (const auto& [hash, node] : nodes_) {
    KVASIR_CHECK(node->children == children[node.get()]);
    KVASIR_CHECK(node->paged_children == paged[node.get()]);
  }
  for (const auto& [salt, root] : roots_) KVASIR_CHECK(root->nodes == of_root[root.get()] && root->nodes > 0);
  KVASIR_CHECK(of_root.size() == roots_.size() && items == order_.size());
  KVASIR_CHECK(own == snapshot_bytes_ && charged == charge_.bytes());
  cache_->pool().check_invariants();
}

}  // namespace kvasir
