// The prefix cache as requests use it: what a request may continue, and what it leaves for others.
//
// Exact pages serve every policy up to RetentionPolicy::exact_prefix. Snapshots serve requests of the same policy and
// chunk: those of policies by range wherever they stand, those of the others at chunk boundaries strictly inside a
// prompt, before anything happens that depends on where it ends. A request that continues either has the bits that it
// would have had without. Requests of different codecs share nothing.
//
// Thread-safety: none; as the requests.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "prefix/prefix_cache.h"
#include "prefix_store/prefix_tiers.h"
#include "sequence/sequence.h"

namespace kvasir {

// How one request uses the cache.
struct PrefixUse {
  bool bypass = false;
  std::string salt;
  bool pinned = false;
  double ttl = 0;                // seconds; 0: no limit
  int tenant = 0;                // who pins
  std::optional<KvCodec> codec;  // of its pages, one that the cache allows; none: that of the cache's shape
};

// What a sequence has run, and under which policy it started.
struct PrefixText {
  std::span<const TokenId> tokens;  // of the prompt, then those generated
  std::int64_t prompt = 0;          // of these, the prompt's
  const RetentionPolicy* policy = nullptr;
  int chunk = 0;  // of prompts; 0: the policy's own
};

class PrefixStore {
 public:
  // `most_bytes`: see PrefixCache. REQUIRES: the cache allows what it will ever allow.
  PrefixStore(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache, std::uint64_t most_bytes);

  struct Start {
    std::unique_ptr<Sequence> sequence;  // null: nothing was found, or there is no room for its tables (kNoRoom)
    std::int64_t tokens = 0;             // that the sequence has seen
    bool snapshot = false;               // they come from a snapshot; otherwise from exact pages
    PrefixMiss miss = PrefixMiss::kUnknown;
  };
  // Returns the tokens that start() would find. Changes nothing.
  std::int64_t find(const PrefixUse& use, const PrefixText& text) const;
  // Returns the tokens of a text that start() would find once another prompt, which begins with `common` of them, has
  // been read to its end.
  std::int64_t will_find(const PrefixUse& use, const PrefixText& text, const PrefixUse& other_use,
                         const PrefixText& other, std::int64_t common) const;
  // Returns the tokens of a text for which exact pages would be used if the cache held all.
  std::int64_t most_exact(const PrefixUse& use, const PrefixText& text) const;
  // Returns a sequence that holds the longest known beginning of the text, but for its last token. Other prefixes give
  // way to its tables.
  Start start(const PrefixUse& use, const PrefixText& text);

  // The sequence is at a chunk boundary: leaves what others may continue. Does nothing most times. Returns whether it
  // left a snapshot.
  bool leave(const PrefixUse& use, const PrefixText& text, const Sequence& sequence);
  // The sequence is not needed any more.
  void leave_last(const PrefixUse& use, const PrefixText& text, std::unique_ptr<Sequence> sequence);

  // Returns where snapshots may be stored outside memory that take a text farther than its first `held` tokens, and
  // than its exact pages do. May be used as long as this lives.
  StoredSnapshots stored_snapshots(const PrefixUse& use, const PrefixText& text, std::int64_t held);
  // The key under which a snapshot of the text's first tokens is stored.
  BlobKey snapshot_key(const PrefixUse& use, const PrefixText& text, std::int64_t tokens) const;

  // The text's numbers are damaged: gives back what may hold them.
  void discard(const PrefixUse& use, const PrefixText& text);

  ~PrefixStore();
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  // Where the texts of such requests are. Valid as long as `use` and this.
  PrefixSpace space_of(const PrefixUse& use) const { return {use.salt, codec_name_of(codec_of(use))}; }

  PrefixCache& cache() { return cache_; }
  const PrefixCache& cache() const { return cache_; }
  void expire();

 private:
  // Adds a snapshot that came from outside memory. False: there is no room, or it is none.
  bool add_stored(const PrefixUse& use, const RetentionPolicy& policy, const std::string& lineage,
                  std::span<const TokenId> text, std::span<const std::byte> image);
  PrefixQuery query_of(const PrefixUse& use, const PrefixText& text, const std::string& lineage) const;
  std::unique_ptr<Sequence> adopt(const PrefixText& text, const KvCodec& codec, std::span<const PageId> pages,
                                  std::int64_t tokens) const;
  KvCodec codec_of(const PrefixUse& use) const { return use.codec.value_or(kv_->shape().codec()); }
  std::string_view codec_name_of(const KvCodec& codec) const;
  bool holds_in_other_codec(const PrefixQuery& query, std::int64_t tokens) const;

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> kv_;
  PrefixCache cache_;
  std::vector<std::pair<KvCodec, std::string>> codecs_;  // that requests may have, and PrefixSpace::codec of each
};

}  // namespace kvasir
