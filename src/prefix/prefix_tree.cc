#include "prefix/prefix_tree.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/hash.h"

namespace kvasir {
namespace {

// Approximate overhead of a map or set per element.
constexpr std::uint64_t kLinkBytes = 48;

std::uint64_t hash_tokens(std::span<const TokenId> tokens, std::uint64_t seed) {
  // 0: no parent.
  return std::max<std::uint64_t>(hash64(std::as_bytes(tokens), seed), 1);
}

// No name of a codec or of adapters has a NUL.
std::string key_of(const PrefixSpace& space) {
  std::string key(space.codec);
  key += '\0';
  key += space.adapters;
  key += '\0';
  key += space.salt;
  return key;
}

}  // namespace

PrefixTree::PrefixTree(KvCache* cache)
    : pool_(&cache->pool()),
      slots_(cache->shape().page.slots),
      lanes_(static_cast<std::size_t>(cache->shape().all_lanes())),
      charge_(&cache->budget()) {}

PrefixTree::Snapshot& PrefixTree::Item::snapshot() const {
  const auto found = std::ranges::find(node->snapshots, number, [](const Snapshot& s) { return s.life.number; });
  KVASIR_CHECK(found != node->snapshots.end());
  return *found;
}

std::uint64_t PrefixTree::node_bytes() const {
  return sizeof(Node) + static_cast<std::uint64_t>(slots_) * sizeof(TokenId) + lanes_ * sizeof(PageId) + kLinkBytes +
         sizeof(Item) + kLinkBytes;
}

std::uint64_t PrefixTree::block_bytes(const Node& node) const {
  std::uint64_t bytes = node_bytes();
  for (const PageId page : node.pages) bytes += pool_->page_cost(page_class(page));
  return bytes;
}

std::uint64_t PrefixTree::structure_bytes(const Snapshot& snapshot) {
  return sizeof(Snapshot) + snapshot.lineage.size() + snapshot.tail.size() * sizeof(TokenId) + sizeof(Item) +
         kLinkBytes;
}

void PrefixTree::give_back(std::uint64_t bytes) {
  KVASIR_CHECK(charge_.try_resize(charge_.bytes() - bytes));
}

std::span<const TokenId> PrefixTree::block(std::span<const TokenId> tokens, std::int64_t number) const {
  return tokens.subspan(static_cast<std::size_t>(number * slots_), static_cast<std::size_t>(slots_));
}

std::uint64_t PrefixTree::root_hash(const PrefixSpace& space) {
  const std::uint64_t hash = hash64(std::as_bytes(std::span(space.salt)));
  const std::uint64_t in_codec = space.codec.empty() ? hash : hash64(std::as_bytes(std::span(space.codec)), hash);
  return space.adapters.empty() ? in_codec : hash64(std::as_bytes(std::span(space.adapters)), in_codec);
}

const PrefixTree::Root* PrefixTree::root_of(const PrefixSpace& space) const {
  const auto found = roots_.find(key_of(space));
  return found == roots_.end() ? nullptr : found->second.get();
}

PrefixTree::Root& PrefixTree::make_root(const PrefixSpace& space, int tenant) {
  auto& root = roots_[key_of(space)];
  if (root == nullptr) {
    root = std::make_unique<Root>();
    root->salt = space.salt;
    root->codec = space.codec;
    root->adapters = space.adapters;
    root->tenant = tenant;
    root->hash = root_hash(space);
  }
  return *root;
}

void PrefixTree::remove_if_empty(const PrefixSpace& space) {
  if (const auto found = roots_.find(key_of(space)); found != roots_.end() && found->second->nodes == 0)
    roots_.erase(found);
}

PrefixTree::Node* PrefixTree::child_of(const Root& root, const Node* parent, std::span<const TokenId> tokens,
                                       std::uint64_t* hash) const {
  *hash = hash_tokens(tokens, parent == nullptr ? root.hash : parent->hash);
  const auto found = nodes_.find(*hash);
  if (found == nodes_.end()) return nullptr;
  Node* node = found->second.get();
  return node->root == &root && node->parent == parent && std::ranges::equal(node->tokens, tokens) ? node : nullptr;
}

PrefixTree::Node* PrefixTree::child_or_new(Root& root, Node* parent, std::span<const TokenId> tokens) {
  std::uint64_t hash = 0;
  if (Node* child = child_of(root, parent, tokens, &hash); child != nullptr) return child;
  if (nodes_.contains(hash)) return nullptr;  // another text has this hash
  if (!try_charge(node_bytes())) return nullptr;
  auto node = std::make_unique<Node>();
  node->root = &root;
  node->parent = parent;
  node->hash = hash;
  node->depth = parent == nullptr ? 1 : parent->depth + 1;
  node->tokens.assign(tokens.begin(), tokens.end());
  node->life.number = next_number();
  Node* made = node.get();
  nodes_.emplace(hash, std::move(node));
  gone_.forget(hash);
  ++root.nodes;
  if (parent != nullptr) ++parent->children;
  return made;
}

void PrefixTree::remove_if_bare(Node* node, PrefixMiss why) {
  while (node != nullptr && node->children == 0 && node->pages.empty() && node->snapshots.empty()) {
    Node* parent = node->parent;
    Root* root = node->root;
    if (parent != nullptr) --parent->children;
    if (why != PrefixMiss::kNone) gone_.remember(node->hash, why);
    nodes_.erase(node->hash);
    give_back(node_bytes());
    if (--root->nodes == 0) remove_if_empty(root->space());
    node = parent;
  }
}

}  // namespace kvasir
