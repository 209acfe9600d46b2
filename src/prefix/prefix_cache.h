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
  bool empty() const { return tree_.nodes().empty(); }
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
  std::uint64_t pinned_bytes() const { return order_.pinned_bytes(); }

  // Optional; may be null. Must outlive this. First hears of every block whose pages are held now.
  void set_listener(PrefixListener* listener);
  // KVASIR_CHECKs that its structures agree with each other.
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

  // Adds the pages of the first `blocks` blocks, which pages_of appends; false from it: there are none. Returns how
  // many of them, from the first on, the cache then refers to, before it gives way to its bound.
  std::int64_t add(const PrefixSpace& space, std::span<const TokenId> tokens, std::int64_t blocks,
                   const PrefixKeep& keep,
                   const std::function<bool(std::int64_t block, std::vector<PageId>& pages)>& pages_of);
  void tell_stored(const Node& node) const;
  void keep_within_bound();
  void evict(const Item& item, PrefixMiss why);
  // Evicts something; of a block, also those before it for which `goes` holds and behind which no block is left.
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
