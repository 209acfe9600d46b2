// Prefixes outside memory: exact blocks of the prefix cache, in parts, and snapshots of sequences. They are written
// behind to a disk and a server in the network, and fetched into the cache for requests that begin alike.
//
// A fetch brings parts or one snapshot, whichever saves more time, and only what is read, as measured, in less time
// than its tokens are computed. It ends with all parts that are worth it, before a part that is missing or damaged, or
// when computing the tokens would have taken as long. Then the request continues what the cache holds. No call but
// wait() blocks; each copies a bounded number of bytes between buffers and pages.
//
// Thread-safety: one caller at a time, that of the cache; the threads of the stores run beside it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kv/kv_cache.h"
#include "kvasir/result.h"
#include "prefix/prefix_cache.h"
#include "prefix/prefix_part.h"
#include "prefix_store/blob_buffers.h"
#include "tiers/blob_queue.h"

namespace kvasir {

// Snapshots of the beginnings of a text, as they may be stored.
struct StoredSnapshots {
  struct Place {
    BlobKey key;
    std::int64_t tokens = 0;  // tokens that it has seen
  };
  std::vector<Place> places;  // the longest beginning first
  // Adds to the cache the image of a sequence that has seen exactly `text`. Returns false if it cannot be used.
  std::function<bool(std::span<const TokenId> text, std::span<const std::byte> image)> add;
};

// The beginning of a text on its way into the cache.
class PrefixFetch {
 public:
  bool done() const { return state_ == State::kDone; }
  // First tokens of the text that came from outside memory or were held before. REQUIRES: done().
  std::int64_t tokens() const { return tokens_; }
  // The farthest store that a part came from: "disk", "redis"; empty: no part came.
  std::string_view from() const { return from_; }

 private:
  friend class PrefixTiers;
  enum class State { kAsking, kReading, kDone };
  struct Part {
    BlobKey key;
    std::int64_t end = 0;     // tokens of the text up to its end
    std::uint64_t bytes = 0;  // of the blob; a snapshot's are 0 until it was found
    std::size_t tier = 0;
    bool there = false;
  };

  PrefixSpace space() const { return {salt_, codec_, adapters_}; }
  std::vector<Part*> candidates();  // parts, and snapshots

  State state_ = State::kAsking;
  PartShape shape_;
  PageClass class_{};
  std::string salt_, codec_, adapters_;
  std::vector<TokenId> text_;
  std::int64_t first_ = 0;       // number of parts_.front()
  std::vector<Part> parts_;      // wanted
  std::vector<Part> snapshots_;  // candidates; empty once it is decided what is read
  bool is_snapshot_ = false;     // parts_ is one snapshot
  StoredSnapshots stored_;
  std::size_t next_ = 0;   // part to ask for
  std::size_t added_ = 0;  // parts that are in the cache
  int under_way_ = 0;
  std::int64_t tokens_ = 0;
  std::string_view from_;
  double seconds_per_token_ = 0;  // of computing tokens
  std::chrono::steady_clock::time_point until_;
};

class PrefixTiers {
 public:
  using Warn = std::function<void(const std::string&)>;

  // Bytes of buffers between stores and pages, at most, each way of each store.
  static constexpr std::uint64_t kBufferBytes = std::uint64_t{32} << 20;
  static constexpr std::uint64_t kMostBufferBytes = 2 * kBufferBytes;  // of a store, both ways

  // The texts of one codec: how their blocks are stored.
  struct Form {
    std::string codec;  // PrefixSpace::codec
    PartShape shape;
    PageClass of{};  // class of its pages
  };

  // `stores`: from near to far. `cache` and `kv` must outlive this. `forms`: texts of other codecs are not stored.
  // `warn`: optional callback, receives a line about each failure.
  PrefixTiers(PrefixCache* cache, KvCache* kv, std::vector<Form> forms, std::vector<std::unique_ptr<BlobStore>> stores,
              Warn warn);

  // Begins to fetch a text's tokens [0, most), of which the cache serves `held`. Returns null if nothing outside memory
  // is worth it. If another fetch under way brings the same tokens, returns that one and sets *shared. `snapshots`:
  // those that hold more than `held` tokens.
  std::shared_ptr<PrefixFetch> fetch(const PrefixSpace& space, std::span<const TokenId> text, std::int64_t held,
                                     std::int64_t most, StoredSnapshots snapshots, double seconds_per_token,
                                     bool* shared);

  // Writes parts of a text whose blocks the cache holds and the stores do not. `from`: tokens for which this was called
  // before. Skips parts for which there is no buffer; a later call may write them.
  void leave(const PrefixSpace& space, std::span<const TokenId> text, std::int64_t from);

  // Writes a snapshot, unless the stores have one with this key, or there is no buffer. `make` returns its size in
  // bytes and a function that writes it, which is called once, before this returns.
  using WriteImage = std::function<void(std::span<std::byte>)>;
  void leave_snapshot(const BlobKey& key, const std::function<std::pair<std::size_t, WriteImage>()>& make);

  // Advances the fetches. Call it between two passes.
  void advance();
  bool fetching() const { return !fetches_.empty(); }
  // Whether a store has yet to answer, or an answer was not processed yet.
  bool busy() const;
  // Waits until a store has answered, but no longer than `most`.
  void wait(std::chrono::milliseconds most);

  std::vector<PrefixTierReport> report() const;
  // Returns the bytes that the buffers take now, idle ones included.
  std::uint64_t buffer_bytes() const { return buffers_.bytes(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Tier {
    explicit Tier(std::unique_ptr<BlobStore> store) : queue(std::move(store)) {}
    BlobQueue queue;
    PrefixTierReport counts;
    std::uint64_t reading = 0;  // bytes of buffers
    std::uint64_t writing = 0;
    // Hashes of keys that were written or found. Used for stores that do not answer at once.
    std::unordered_set<std::uint64_t> known;
    std::unordered_set<std::uint64_t> being_written;
    bool failing = false;  // has failed since its last success; the user is told once

    // Whether the store is known to have this key.
    bool holds(const BlobKey& key);
    void remember(const BlobKey& key);
  };
  struct Reading {
    std::shared_ptr<PrefixFetch> fetch;
    std::size_t part = 0;                   // in parts_; unused for sizes
    std::vector<PrefixFetch::Part*> asked;  // of the fetch: parts, snapshots
  };

  // Returns how the texts of a space are stored; nullopt: they are not.
  std::optional<Form> form_of(const PrefixSpace& space) const;
  void take(std::size_t tier, BlobAnswer& answer);
  void take_sizes(std::size_t tier, const BlobAnswer& answer, PrefixFetch& fetch,
                  const std::vector<PrefixFetch::Part*>& asked);
  void take_part(std::size_t tier, BlobAnswer& answer, PrefixFetch& fetch, std::size_t part);
  bool add_to_cache(PrefixFetch& fetch, std::size_t part, std::span<const std::byte> pages);
  void add_parts(PrefixFetch& fetch, const PrefixSpace& space, std::span<const TokenId> text, std::int64_t most) const;
  bool find_near(PrefixFetch::Part& part) const;
  static void note_size(PrefixFetch::Part& part, std::uint64_t bytes, std::size_t tier);
  std::shared_ptr<PrefixFetch> bringing(const PrefixFetch& wanted) const;
  std::size_t far() const;
  void choose(PrefixFetch& fetch);
  void ask(const std::shared_ptr<PrefixFetch>& fetch);
  void end(PrefixFetch& fetch);
  std::vector<Tier*> without(const BlobKey& key) const;
  static std::vector<Tier*> room_for(std::vector<Tier*> tiers, std::size_t bytes);
  void write(const std::vector<Tier*>& to, const BlobKey& key, const std::shared_ptr<BlobBuffer>& buffer);
  // Tier::reading and writing bound the buffers in use to kMostBufferBytes for each store.
  std::shared_ptr<BlobBuffer> new_buffer(std::size_t bytes) {
    return buffers_.take(bytes, kMostBufferBytes * tiers_.size());
  }
  static std::span<const TokenId> text_of(const PrefixFetch& fetch, const PrefixFetch::Part& part);

  PrefixCache* cache_;
  KvCache* kv_;
  Warn warn_;
  std::vector<Form> forms_;
  std::vector<std::shared_ptr<PrefixFetch>> fetches_;
  std::map<std::uint64_t, Reading> readings_;                // by tag
  std::vector<std::pair<std::size_t, BlobAnswer>> arrived_;  // received by wait(), not processed yet
  BlobBuffers buffers_;
  std::uint64_t next_tag_ = 1;
  std::vector<std::unique_ptr<Tier>> tiers_;  // destroyed first: their threads use the members above
};

}  // namespace kvasir
