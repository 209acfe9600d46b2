// A cache of what texts begin with: a tree over blocks of tokens, with the pages that hold their keys and values, and
// snapshots of sequences at places in it.
//
// A block is as many tokens as a page has slots. Its pages are exact: they come from a sequence that had hidden and
// dropped nothing, so any sequence may continue them as far as its policy allows. A snapshot is the state of a sequence
// under a policy; it serves its own lineage alone (policy, options, grid of chunks). Tokens are compared, not hashes
// alone. Texts of different salts, and of different codecs, share nothing.
//
// The cache refers to pages as sequences do: a page is freed with its last reference. Blocks and snapshots may refer to
// the same pages; the sums below count each page once. Everything the cache holds is charged to the budget of the KV
// cache. evict_one gives it back, least recently used first, pinned items last. An item whose time to live has passed
// is not found; a pin ends with the time to live that it was given with.
//
// Tenants do not evict each other's items: the next to go is the least recently used item of the tenant that holds
// most. A tenant that holds no more than an equal share loses nothing, whatever the others add.
//
// Pins are bounded: a tenant can pin no more bytes than then stay unpinned, so that the others always find room. What
// it asks to pin beyond that is kept unpinned.
//
// Thread-safety: none; as the KV cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kv/kv_cache.h"
#include "kvasir/prefix_listener.h"
#include "prefix/prefix_order.h"
#include "prefix/prefix_tree.h"

namespace kvasir {

struct PrefixQuery {
  PrefixSpace space() const { return {salt, codec, adapters}; }

  std::string_view salt;
  std::string_view codec;           // see PrefixSpace
  std::string_view adapters;        // the same
  std::string_view lineage;         // of snapshots
  std::span<const TokenId> tokens;  // the text
  std::int64_t most_exact = 0;      // most tokens that exact pages may replace
  std::int64_t exact_multiple = 1;  // their number must be a multiple of this
  std::int64_t most_snapshot = 0;   // most tokens that a snapshot may replace
  double now = 0;                   // on the caller's clock, seconds
};

struct PrefixMatch {
  std::int64_t tokens = 0;  // first tokens that need not be run
  // The snapshot that holds these tokens; null if exact pages do. Stays valid after the cache has dropped it.
  std::shared_ptr<const PrefixSnapshot> snapshot;
  PrefixMiss miss = PrefixMiss::kUnknown;
};

class PrefixCache {
 public:
  // `cache` must outlive this, and have no other prefix cache. `most_bytes`: bound of bytes().
  PrefixCache(KvCache* cache, std::uint64_t most_bytes);
  ~PrefixCache();

  // Finds the longest known beginning of a text. Changes nothing.
  PrefixMatch find(const PrefixQuery& query) const;
  // Returns the pages [column][lane] of the first `tokens` tokens, and marks them as used now. REQUIRES: find, with
  // nothing changed since, returned them as exact.
  std::vector<PageId> pages(const PrefixQuery& query, std::int64_t tokens);
  // Marks a snapshot that find returned as used now.
  void touch(const PrefixQuery& query, const PrefixSnapshot& snapshot);

  // Adds references to the whole columns that hold the first tokens of a text, as far as there is room. REQUIRES: the
  // sequence has hidden and dropped nothing so far, and `tokens` are those it has seen.
  void add_pages(const PrefixSpace& space, std::span<const TokenId> tokens, const KvSequence& sequence,
                 const PrefixKeep& keep);

  // Returns the number of blocks at a text's beginning whose pages the cache holds.
  std::int64_t blocks_held(const PrefixSpace& space, std::span<const TokenId> tokens) const;
  // Returns the pages [block][lane] of `blocks` blocks from number `first` on; empty unless the cache holds all of
  // them. Changes nothing. REQUIRES: the text has these blocks.
  std::vector<PageId> pages_of_blocks(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t first,
                                      std::int64_t blocks) const;
  // Adds references to pages [block][lane] that hold the last blocks of a text, from number `first` on. Returns whether
  // the cache now holds all blocks of the text; it may have lost an earlier one, or have no room. REQUIRES: the text is
  // whole blocks.
  bool add_blocks(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t first,
                  std::span<const PageId> pages, const PrefixKeep& keep);

  // Keeps a snapshot of a sequence that has seen these tokens, in place of one of the same lineage; drops it if there
  // is no room.
  void add_snapshot(const PrefixSpace& space, std::string_view lineage, std::span<const TokenId> tokens,
                    std::unique_ptr<PrefixSnapshot> snapshot, const PrefixKeep& keep);

  // Evicts the least recently used block or snapshot that frees memory, of the tenant that holds most. Returns false if
  // none frees any, since all is shared with sequences.
  bool evict_one();
  void clear();
  // Evicts everything of this space that begins with the text's first block, since its pages cannot be trusted.
  void discard(const PrefixSpace& space, std::span<const TokenId> tokens);
  // Evicts what has passed its time to live, and ends pins that have. Cheap if nothing has a time to live.
  void expire(double now);
  bool empty() const { return tree_.nodes().empty(); }
  PageOwner owner() const { return owner_; }
  std::uint64_t version() const { return version_; }  // changes whenever the results of find may

  // Returns the bytes that evict_one gives back to the budget if it is called until it returns false: pages that only
  // the cache refers to, and what snapshots have beside pages. Bytes of its own structures come in addition. O(1).
  std::uint64_t evictable_bytes() const;
  // Returns the bytes of everything that the cache refers to, shared with sequences or not, and of its structures.
  // O(1).
  std::uint64_t bytes() const;
  // Returns the bytes that a tenant holds: its blocks, and its snapshots with all pages that they refer to. A page of
  // several of them counts for each.
  std::uint64_t bytes_of(int tenant) const;
  // Bytes of what is pinned; a page that several pinned snapshots refer to counts for each.
  std::uint64_t pinned_bytes() const { return order_.pinned_bytes(); }

  // Optional; may be null. Must outlive this. It is first told of every block whose pages are held now.
  void set_listener(PrefixListener* listener);
  // Checks (KVASIR_CHECK) that its structures agree with each other.
  void check_invariants() const;
  // Adds its references to pages ([pool capacity]).
  void count_references(PageCounts& references) const;
  // Bytes charged for its own structures.
  std::uint64_t charged_bytes() const { return tree_.charged_bytes(); }

 private:
  using Node = PrefixTree::Node;
  using Life = PrefixTree::Life;
  using Snapshot = PrefixTree::Snapshot;
  using Item = PrefixTree::Item;

  // Adds the pages of the first `blocks` blocks, which pages_of appends; it returns false for a block without pages.
  // Returns how many blocks, from the first on, the cache then held, before it evicted down to its bound.
  std::int64_t add(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t blocks,
                   const PrefixKeep& keep,
                   const std::function<bool(std::int64_t block, std::vector<PageId>& pages)>& pages_of);
  void tell_stored(const Node& node) const;
  void keep_within_bound();
  void evict(const Item& item, PrefixMiss why);
  // Evicts an item. After a block, also evicts blocks before it for which `goes` holds and behind which none is left.
  void evict_chain(const Item& item, PrefixMiss why, const std::function<bool(const Node&)>& goes);

  KvCache* cache_;
  std::uint64_t most_bytes_;
  PageOwner owner_;
  PrefixTree tree_;
  PrefixOrder order_;
  std::uint64_t snapshot_bytes_ = 0;  // sum of their own_bytes
  std::uint64_t version_ = 1;
  PrefixListener* listener_ = nullptr;
};

}  // namespace kvasir
