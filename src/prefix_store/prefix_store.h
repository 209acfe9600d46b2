// The prefix cache as requests use it: what a request may continue, and what it leaves for others.
//
// Exact pages serve every policy up to RetentionPolicy::exact_prefix. Snapshots serve requests of the same policy and
// chunk: under policies by range at any place, under others at chunk boundaries strictly inside a prompt, before
// anything depends on where it ends. A request that continues either gets the same bits as without the cache. Requests
// of different codecs share nothing.
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
#include "prefix_store/thought_places.h"
#include "sequence/sequence.h"

namespace kvasir {

// How one request uses the cache.
struct PrefixUse {
  bool bypass = false;
  std::string salt;
  bool pinned = false;
  double ttl = 0;                // seconds; 0: no limit
  int tenant = 0;                // owner of what it leaves, and of its pins
  std::optional<KvCodec> codec;  // of its pages, one that the cache allows; none: that of the cache's shape
  std::vector<AppliedAdapter> adapters = {};  // that it runs with
  std::string adapter_key = {};               // the same, for any engine: as kvasir::adapter_key
};

// What a sequence has run, and under which policy it started.
struct PrefixText {
  std::span<const TokenId> tokens;  // the prompt, then generated tokens
  std::int64_t prompt = 0;          // tokens of the prompt
  const RetentionPolicy* policy = nullptr;
  int chunk = 0;             // of prompts; 0: the policy's own
  std::int64_t lasting = 0;  // see RequestOptions::lasting_tokens
};

class PrefixStore {
 public:
  // `most_bytes`: see PrefixCache. REQUIRES: the codecs that the cache allows do not change any more.
  PrefixStore(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache, std::uint64_t most_bytes);

  struct Start {
    std::unique_ptr<Sequence> sequence;  // null: nothing was found, or there is no room for its tables (kNoRoom)
    std::int64_t tokens = 0;             // tokens that the sequence has seen
    bool snapshot = false;               // true: it comes from a snapshot; false: from exact pages
    PrefixMiss miss = PrefixMiss::kUnknown;
  };
  // Returns the number of tokens that start() would find. Changes nothing.
  std::int64_t find(const PrefixUse& use, const PrefixText& text) const;
  // Returns the number of tokens that start() would find once another prompt, which begins with `common` tokens of this
  // text, has been read to its end.
  std::int64_t will_find(const PrefixUse& use, const PrefixText& text, const PrefixUse& other_use,
                         const PrefixText& other, std::int64_t common) const;
  // Returns the number of tokens for which exact pages would be used if the cache held all.
  std::int64_t most_exact(const PrefixUse& use, const PrefixText& text) const;
  // Returns a sequence that holds the longest known beginning of the text, without its last token. May evict other
  // prefixes to make room for its tables.
  Start start(const PrefixUse& use, const PrefixText& text);

  // Returns whether a snapshot of the text's first `lasting` tokens serves the conversation's next prompt: exact pages
  // do not, and this policy's snapshots may be at any place. leave() then adds it.
  bool wants_lasting(const PrefixUse& use, const PrefixText& text) const;
  // Remembers that an answer with thoughts followed the text's first `lasting` tokens.
  void note_thoughts(const PrefixUse& use, const PrefixText& text);

  // Adds what others may continue to the cache; at most chunk boundaries there is nothing to add. Returns whether it
  // added a snapshot that others may find outside memory, too. REQUIRES: the sequence is at a chunk boundary.
  bool leave(const PrefixUse& use, const PrefixText& text, const Sequence& sequence);
  // As leave, for a sequence that is not needed any more.
  void leave_last(const PrefixUse& use, const PrefixText& text, std::unique_ptr<Sequence> sequence);

  // Returns the keys under which snapshots may be stored outside memory that hold more of a text than its first `held`
  // tokens and its exact pages. Must not be used after this is destroyed.
  StoredSnapshots stored_snapshots(const PrefixUse& use, const PrefixText& text, std::int64_t held);
  // Returns the key under which a snapshot of the text's first `tokens` tokens is stored.
  BlobKey snapshot_key(const PrefixUse& use, const PrefixText& text, std::int64_t tokens) const;

  // Evicts all that may hold numbers of a text in which damaged ones were found.
  void discard(const PrefixUse& use, const PrefixText& text);

  ~PrefixStore();
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  // Returns the space of such requests' texts. Valid as long as `use` and this.
  PrefixSpace space_of(const PrefixUse& use) const { return {use.salt, codec_name_of(codec_of(use)), use.adapter_key}; }

  PrefixCache& cache() { return cache_; }
  const PrefixCache& cache() const { return cache_; }
  void expire();

 private:
  // Adds a snapshot that came from outside memory. Returns false if there is no room, or the image is invalid.
  bool add_stored(const PrefixUse& use, const RetentionPolicy& policy, const std::string& lineage,
                  std::span<const TokenId> text, std::span<const std::byte> image);
  PrefixQuery query_of(const PrefixUse& use, const PrefixText& text, const std::string& lineage) const;
  std::unique_ptr<Sequence> adopt(const PrefixUse& use, const PrefixText& text, std::span<const PageId> pages,
                                  std::int64_t tokens) const;
  // The lineage of images: as image_lineage.
  Hash128 stored_lineage(const PrefixUse& use, std::string_view lineage) const;
  KvCodec codec_of(const PrefixUse& use) const { return use.codec.value_or(kv_->shape().codec()); }
  std::string_view codec_name_of(const KvCodec& codec) const;
  bool holds_in_other_codec(const PrefixQuery& query, std::int64_t tokens) const;

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> kv_;
  PrefixCache cache_;
  ThoughtPlaces thoughts_;
  std::vector<std::pair<KvCodec, std::string>> codecs_;  // allowed codecs, with PrefixSpace::codec of each
};

}  // namespace kvasir
