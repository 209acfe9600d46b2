// The tree of a prefix cache: texts in blocks of tokens, with what the cache holds for each block.
//
// A node is found by the hash of its block and the text before it; its tokens, parent and space are then compared.
// Nodes and the other structures of the cache are charged to its budget.
//
// Thread-safety: none; as the prefix cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kv/kv_cache.h"
#include "prefix/gone_blocks.h"

namespace kvasir {

using TokenId = std::int32_t;  // as in text/vocabulary.h

// The state of a sequence after some tokens of a text, opaque to the cache. Its references to pages are marked as a
// cache's (PagePool::mark_cached).
class PrefixSnapshot {
 public:
  virtual ~PrefixSnapshot() = default;
  // Bytes charged for it beside its pages: its tables and its state. They do not change.
  virtual std::uint64_t own_bytes() const = 0;
  // Those bytes, and all pages that it refers to.
  virtual std::uint64_t bytes_with_pages() const { return own_bytes(); }
};

// Texts of different spaces share nothing.
struct PrefixSpace {
  PrefixSpace(std::string_view of_salt = {}, std::string_view of_codec = {}, std::string_view of_adapters = {})
      : salt(of_salt), codec(of_codec), adapters(of_adapters) {}
  PrefixSpace(const std::string& of_salt) : salt(of_salt) {}
  PrefixSpace(const char* of_salt) : salt(of_salt) {}

  std::string_view salt;
  std::string_view codec;     // of the pages: any name that identifies one, without a NUL. Empty: the cache's own
  std::string_view adapters;  // that the texts run with: as codec. Empty: none
};

class PrefixTree {
 public:
  // Texts of one space.
  struct Root {
    std::string salt;
    std::string codec;
    std::string adapters;
    PrefixSpace space() const { return {salt, codec, adapters}; }

    std::uint64_t hash = 0;
    std::int64_t nodes = 0;
    int tenant = 0;
  };
  struct Life {
    bool pinned = false;
    int tenant = 0;  // of the pin, as the next two
    double pinned_until = 0;
    std::uint64_t pinned_bytes = 0;
    double until = 0;
    std::uint64_t used = 0;
    std::uint64_t number = 0;
  };
  struct Snapshot {
    std::string lineage;
    std::vector<TokenId> tail;  // tokens behind the node's
    std::shared_ptr<const PrefixSnapshot> snapshot;
    Life life;
    std::uint64_t charged = 0;
    std::uint64_t bytes = 0;  // with all pages that it refers to
  };
  struct Node {
    // Whether its pages can be evicted: it has some, and no block behind it has any.
    bool in_order() const { return !pages.empty() && paged_children == 0; }

    Root* root = nullptr;
    Node* parent = nullptr;
    std::uint64_t hash = 0;
    std::int64_t depth = 0;  // blocks up to this one
    std::vector<TokenId> tokens;
    std::vector<PageId> pages;  // [lane], or empty
    std::int64_t children = 0;
    std::int64_t paged_children = 0;
    std::vector<Snapshot> snapshots;
    Life life;  // of the pages
  };
  // Something that can be evicted: the pages of a block, or a snapshot.
  struct Item {
    bool is_block() const { return number == node->life.number; }
    Snapshot& snapshot() const;  // REQUIRES: !is_block()
    Life& life() const { return is_block() ? node->life : snapshot().life; }
    bool operator<(const Item& other) const {
      return std::tie(pinned, used, number) < std::tie(other.pinned, other.used, other.number);
    }

    bool pinned = false;
    std::uint64_t used = 0;
    std::uint64_t number = 0;  // Life::number, distinct
    Node* node = nullptr;
  };

  explicit PrefixTree(KvCache* cache);

  std::int64_t slots() const { return slots_; }  // tokens of a block
  std::size_t lanes() const { return lanes_; }
  const auto& roots() const { return roots_; }
  const auto& nodes() const { return nodes_; }
  GoneBlocks& gone() { return gone_; }
  const GoneBlocks& gone() const { return gone_; }

  std::span<const TokenId> block(std::span<const TokenId> tokens, std::int64_t number) const;
  static std::uint64_t root_hash(const PrefixSpace& space);
  const Root* root_of(const PrefixSpace& space) const;
  // Returns the node of a block behind `parent` (null: the text's first block), or null. Sets *hash to the node's hash
  // in either case.
  Node* child_of(const Root& root, const Node* parent, std::span<const TokenId> tokens, std::uint64_t* hash) const;
  // Visits the nodes of a text's blocks, from the first on, until one is missing or `visit` returns false.
  template <class Visit>
  void walk(const PrefixSpace& space, std::span<const TokenId> tokens, const Visit& visit) const {
    const Root* root = root_of(space);
    Node* node = nullptr;
    for (std::int64_t depth = 0; root != nullptr && (depth + 1) * slots_ <= std::ssize(tokens); ++depth) {
      std::uint64_t hash = 0;
      node = child_of(*root, node, block(tokens, depth), &hash);
      if (node == nullptr || !visit(*node)) return;
    }
  }

  Root& make_root(const PrefixSpace& space, int tenant);
  void remove_if_empty(const PrefixSpace& space);
  // Returns the node of child_of, or a new one. Null if there is no room, or another text has the same hash.
  Node* child_or_new(Root& root, Node* parent, std::span<const TokenId> tokens);
  // Removes nodes that hold nothing, from this one towards the root, and remembers why they do not; kNone: they never
  // held anything.
  void remove_if_bare(Node* node, PrefixMiss why);
  std::uint64_t next_number() { return ++numbers_; }  // of a Life

  // Bytes charged for the structures of the cache. A node charges its own.
  std::uint64_t charged_bytes() const { return charge_.bytes(); }
  std::uint64_t node_bytes() const;
  std::uint64_t block_bytes(const Node& node) const;  // with the pages of its block, all lanes
  static std::uint64_t structure_bytes(const Snapshot& snapshot);
  bool try_charge(std::uint64_t bytes) { return charge_.try_resize(charge_.bytes() + bytes); }
  void give_back(std::uint64_t bytes);

 private:
  const PagePool* pool_;
  std::int64_t slots_;
  std::size_t lanes_;
  MemoryCharge charge_;
  std::uint64_t numbers_ = 0;
  std::unordered_map<std::string, std::unique_ptr<Root>> roots_;  // by codec, adapters and salt
  std::unordered_map<std::uint64_t, std::unique_ptr<Node>> nodes_;
  GoneBlocks gone_;
};

}  // namespace kvasir
