// A cache of what texts begin with: a tree over blocks of tokens, with the pages that hold their keys and values, and
// snapshots of sequences that stand at some place in it.
//
// A block is as many tokens as a page has slots. Its pages are exact: those of a sequence that had hidden and dropped
// nothing, so any sequence may continue them as far as its policy allows. A snapshot is what a policy has made of a
// text; it serves its own lineage alone (policy, options, grid of chunks). Tokens are compared, not hashes alone.
// Texts of different salts, and of different codecs, never meet.
//
// The cache refers to pages as sequences do: a page is free once the last reference goes. Blocks and snapshots may
// refer to the same pages; the sums below count each page once. Everything it holds is charged to the budget of the KV
// cache, and evict_one gives it back, least recently used first: what is not pinned, then the rest. What has
// passed its time to live is found no more; a pin ends with the time to live that it came with.
//
// Tenants do not push each other out: what must go is the least recently used of the tenant that holds most. A tenant
// that holds no more than its equal part keeps all, whatever the others add.
//
// Pins are bounded: a tenant pins no more bytes than stay unpinned then, so that the others always find room. What it
// asks to pin beyond that is kept unpinned.
//
// Thread-safety: none; as the KV cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "kv/kv_cache.h"
#include "kvasir/prefix_listener.h"

namespace kvasir {

using TokenId = std::int32_t;  // as in text/vocabulary.h

// A sequence at some place in a text, for those that know what to do with it. Its references to pages are marked as a
// cache's (PagePool::mark_cached).
class PrefixSnapshot {
 public:
  virtual ~PrefixSnapshot() = default;
  // Bytes charged for it beside its pages: its tables and its state. They do not change.
  virtual std::uint64_t own_bytes() const = 0;
  // These, and all pages that it refers to.
  virtual std::uint64_t bytes_with_pages() const { return own_bytes(); }
};

// Why no more of a text was found.
enum class PrefixMiss {
  kNone,     // all was found that could be
  kShort,    // the text is shorter than a block
  kUnknown,  // no text was seen that goes on like this
  kEvicted,  // it was, but had to go since
  kExpired,  // it was, but its time to live has passed
  kPolicy,   // it was, but this policy cannot continue from there
  kNoRoom,   // it was, but there was no memory for the page tables of one more sequence
  kCodec,    // it was, but stored in another codec
};
std::string_view prefix_miss_name(PrefixMiss miss);

// How long something stays.
struct PrefixKeep {
  bool pinned = false;                                     // as long
  double until = std::numeric_limits<double>::infinity();  // on the caller's clock, seconds
  int tenant = 0;                                          // whose it is; of a salt, the first counts
};

// Texts of different spaces never meet.
struct PrefixSpace {
  PrefixSpace(std::string_view of_salt = {}, std::string_view of_codec = {}) : salt(of_salt), codec(of_codec) {}
  PrefixSpace(const std::string& of_salt) : salt(of_salt) {}
  PrefixSpace(const char* of_salt) : salt(of_salt) {}

  std::string_view salt;
  std::string_view codec;  // of the pages; any name that stands for one, without a NUL. Empty: the cache's own
};

struct PrefixQuery {
  PrefixSpace space() const { return {salt, codec}; }

  std::string_view salt;
  std::string_view codec;           // see PrefixSpace
  std::string_view lineage;         // of snapshots
  std::span<const TokenId> tokens;  // the text
  std::int64_t most_exact = 0;      // tokens for which exact pages may stand in
  std::int64_t exact_multiple = 1;  // of which their number must be a multiple
  std::int64_t most_snapshot = 0;   // tokens that a snapshot may stand for
  double now = 0;                   // on the caller's clock, seconds
};

struct PrefixMatch {
  std::int64_t tokens = 0;  // that need not be run
  // The snapshot that holds these tokens; null if exact pages do. Stays valid after the cache has dropped it.
  std::shared_ptr<const PrefixSnapshot> snapshot;
  PrefixMiss miss = PrefixMiss::kUnknown;
};

class PrefixCache {
 public:
  // `cache` must outlive this, and have no other prefix cache. `most_bytes`: of all that the prefix cache refers to,
  // shared with sequences or not.
  PrefixCache(KvCache* cache, std::uint64_t most_bytes);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache();

  // Finds the longest known beginning of a text. Changes nothing.
  PrefixMatch find(const PrefixQuery& query) const;
  // Returns the pages [column][lane] of the first `tokens` tokens, and marks them as used now. REQUIRES: find, with
  // nothing changed since, returned them as exact.
  std::vector<PageId> pages(const PrefixQuery& query, std::int64_t tokens);
  // Marks a snapshot that find returned as used now.
  void touch(const PrefixQuery& query, const PrefixSnapshot& snapshot);

  // Refers to the whole columns that hold the first tokens of a text. REQUIRES: the sequence has hidden and dropped
  // nothing so far, and tokens are those it has seen. Keeps less where there is no room.
  void add_pages(const PrefixSpace& space, std::span<const TokenId> tokens, const KvSequence& sequence,
                 const PrefixKeep& keep);

  // Blocks at a text's beginning whose pages the cache holds.
  std::int64_t blocks_held(const PrefixSpace& space, std::span<const TokenId> tokens) const;
  // The pages [block][lane] of `blocks` blocks from number `first` on; empty unless the cache holds all of them.
  // Changes nothing. REQUIRES: the text has these blocks.
  std::vector<PageId> pages_of_blocks(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t first,
                                      std::int64_t blocks) const;
  // Refers to pages [block][lane] that hold the last blocks of a text, from number `first` on. Returns whether it now
  // holds all blocks of the text: not where it has lost one before, or there is no room. REQUIRES: the text is whole
  // blocks.
  bool add_blocks(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t first,
                  std::span<const PageId> pages, const PrefixKeep& keep);

  // Keeps a snapshot of a sequence that has seen these tokens, in place of one of the same lineage. Drops it where
  // there is no room.
  void add_snapshot(const PrefixSpace& space, std::string_view lineage, std::span<const TokenId> tokens,
                    std::unique_ptr<PrefixSnapshot> snapshot, const PrefixKeep& keep);

  // Gives back the least recently used block or snapshot of those that free memory, of the tenant that holds most.
  // False if none does: what is left is shared with sequences.
  bool evict_one();
  void clear();
  // Gives back all of this space that begins with the text's first block: for a text whose pages cannot be trusted.
  void discard(const PrefixSpace& space, std::span<const TokenId> tokens);
  // Gives back what has passed its time to live, and ends pins that have. Cheap where nothing has one.
  void expire(double now);
  bool empty() const { return nodes_.empty(); }
  PageOwner owner() const { return owner_; }
  std::uint64_t version() const { return version_; }  // differs after every change of what find returns

  // Bytes that evict_one gives back to the budget if it is called until it returns false: the pages that only the cache
  // refers to, and what its snapshots have beside pages. What its own structures take comes free besides. O(1).
  std::uint64_t evictable_bytes() const;
  // Bytes of all that it refers to, shared with sequences or not, and of its own structures. O(1).
  std::uint64_t bytes() const;
  // Bytes that a tenant holds: of its blocks, and of its snapshots with all pages that they refer to. A page that
  // several of them refer to counts for each.
  std::uint64_t bytes_of(int tenant) const;
  // Bytes of what is pinned; a page that several pinned snapshots refer to counts for each.
  std::uint64_t pinned_bytes() const { return pinned_bytes_; }

  // Optional; may be null. Must outlive this. First hears of every block whose pages are held now.
  void set_listener(PrefixListener* listener);
  // KVASIR_CHECKs that its structures agree with each other.
  void check_invariants() const;
  // Adds its references to pages ([pool capacity]).
  void count_references(PageCounts& references) const;
  // Bytes charged for its own structures.
  std::uint64_t charged_bytes() const { return charge_.bytes(); }

 private:
  struct Node;
  // Texts of one space.
  struct Root {
    std::string salt;
    std::string codec;
    std::uint64_t hash = 0;
    std::int64_t nodes = 0;
    int tenant = 0;
  };
  // Something that can be evicted: the pages of a block (no block behind it has pages), or a snapshot.
  struct Item {
    bool pinned = false;
    std::uint64_t used = 0;
    std::uint64_t number = 0;  // distinct
    Node* node = nullptr;
    bool operator<(const Item& other) const {
      return std::tie(pinned, used, number) < std::tie(other.pinned, other.used, other.number);
    }
  };
  struct Life {
    bool pinned = false;
    int tenant = 0;  // if it is pinned: whose pin it is, until when, and bytes
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

  // What a tenant holds.
  struct Share {
    std::set<Item> order;
    std::uint64_t bytes = 0;  // see bytes_of
  };

  std::uint64_t node_bytes() const;
  static std::uint64_t structure_bytes(const Snapshot& snapshot);
  static std::string key_of(const PrefixSpace& space);
  static std::uint64_t root_hash(const PrefixSpace& space);
  std::uint64_t hash_of(const Root& root, const Node* parent, std::span<const TokenId> tokens) const;
  const Root* root_of(const PrefixSpace& space) const;
  const Node* child_of(const Root& root, const Node* parent, std::span<const TokenId> tokens,
                       std::uint64_t* hash) const;
  // Null where there is no room, or another text has the same hash.
  Node* make_child(Root& root, Node* parent, std::span<const TokenId> tokens);
  Root* make_root(const PrefixSpace& space, int tenant);
  void erase_root(const Root& root) { roots_.erase(key_of({root.salt, root.codec})); }
  // Adds the pages of the first `blocks` blocks, which pages_of appends; false from it: there are none. Returns how
  // many of them, from the first on, the cache then refers to, before it gives way to its bound.
  std::int64_t add(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t blocks,
                   const PrefixKeep& keep,
                   const std::function<bool(std::int64_t block, std::vector<PageId>& pages)>& pages_of);
  // Removes nodes that hold nothing, from this one towards the root, and remembers why; kNone: they never held
  // anything.
  void remove_if_bare(Node* node, PrefixMiss why);
  void keep_within_bound();
  void keep_for(Node* node, Life& life, const PrefixKeep& keep, std::uint64_t bytes);
  // Pins something of so many bytes, or for longer, if `keep` asks for it and its tenant may.
  void pin(Life& life, const PrefixKeep& keep, std::uint64_t bytes);
  void unpin(Life& life);
  // REQUIRES: the block has pages.
  std::uint64_t block_bytes(const Node& node) const {
    std::uint64_t bytes = node_bytes();
    for (const PageId page : node.pages) bytes += cache_->pool().page_cost(page_class(page));
    return bytes;
  }
  void use(Node* node, Life& life);
  // When it is given back, or its pin ends.
  static double ends(const Life& life) { return life.pinned ? std::min(life.until, life.pinned_until) : life.until; }
  static Item item_of(Node* node, const Life& life) { return {life.pinned, life.used, life.number, node}; }
  void enter(Node* node, const Life& life);
  void leave(Node* node, const Life& life) { share_of(node).order.erase(item_of(node, life)); }
  Share& share_of(const Node* node) { return shares_.at(node->root->tenant); }
  // Shares that hold something, the largest first.
  std::vector<Share*> largest_first();
  bool in_order(const Node& node) const { return !node.pages.empty() && node.paged_children == 0; }
  static bool is_block(const Item& item) { return item.number == item.node->life.number; }
  static Snapshot& snapshot_of(const Item& item);  // REQUIRES: !is_block(item)
  static Life& life_of(const Item& item) { return is_block(item) ? item.node->life : snapshot_of(item).life; }
  bool frees(const Item& item) const;
  void evict(const Item& item, PrefixMiss why);
  // Evicts something; of a block, also those before it for which `goes` holds and behind which no block is left.
  void evict_chain(const Item& item, PrefixMiss why, const std::function<bool(const Node&)>& goes);
  void remember(std::uint64_t hash, PrefixMiss why);
  void forget(std::uint64_t hash);
  PrefixMiss reason(std::uint64_t hash) const;  // that is remembered, or kNone
  std::span<const TokenId> block(std::span<const TokenId> tokens, std::int64_t number) const;

  KvCache* cache_;
  std::uint64_t most_bytes_;
  std::int64_t slots_;
  std::size_t lanes_;
  PageOwner owner_;
  MemoryCharge charge_;
  std::uint64_t snapshot_bytes_ = 0;  // sum of their own_bytes
  std::uint64_t pinned_bytes_ = 0;
  std::unordered_map<int, std::uint64_t> pinned_by_;  // by tenant; none is 0
  std::uint64_t clock_ = 0;                           // of uses
  std::uint64_t numbers_ = 0;
  std::uint64_t version_ = 1;
  double first_expiry_ = std::numeric_limits<double>::infinity();  // of all lives that were in order_; maybe too early
  std::unordered_map<std::string, std::unique_ptr<Root>> roots_;   // by key_of
  std::unordered_map<std::uint64_t, std::unique_ptr<Node>> nodes_;
  std::map<int, Share> shares_;  // by tenant
  // The blocks that went last or lost something, and why.
  struct Gone {
    PrefixMiss why = PrefixMiss::kNone;
    std::list<std::uint64_t>::iterator place;  // in gone_order_
  };
  std::unordered_map<std::uint64_t, Gone> gone_;
  std::list<std::uint64_t> gone_order_;  // oldest first
  PrefixListener* listener_ = nullptr;
};

}  // namespace kvasir
