// The prefix cache of a queue: what a request may continue, and what it leaves there for others.
//
// Everything here does nothing until enable() was called.
// Thread-safety: as RequestQueue.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "prefix_store/prefix_store.h"
#include "requests/request.h"
#include "requests/request_counters.h"
#include "requests/request_tiers.h"
#include "scheduler/driver.h"

namespace kvasir {

class RequestPrefixes {
 public:
  // `counters` outlives this.
  RequestPrefixes(std::shared_ptr<Driver> driver, RequestCounters* counters);

  // From now on prefixes are cached. `most_bytes`: see PrefixCache.
  void enable(std::uint64_t most_bytes);
  // From now on they are also kept in these stores, from near to far. REQUIRES: enable() was called.
  void store_in(std::vector<std::unique_ptr<BlobStore>> stores, PrefixTiers::Warn warn);
  bool enabled() const { return store_ != nullptr; }
  PrefixCache* cache() const { return store_ != nullptr ? &store_->cache() : nullptr; }
  RequestTiers& tiers() { return tiers_; }
  const RequestTiers& tiers() const { return tiers_; }

  // Drops what has outlived its time.
  void expire();
  // Gives back the cache's least useful entry. False: there is none that can be given back.
  bool evict_one();
  std::uint64_t evictable_bytes() const;  // that evict_one() gives back in all
  std::uint64_t charged_bytes() const;    // of the cache's own structures
  PageOwner owner() const;                // of the cache's pages

  // Returns the tokens that a request without a sequence would not have to run.
  std::int64_t find(Request& request) const;
  // Returns how many tokens a request could take from the cache once another's prompt has been read.
  std::int64_t will_find(const Request& request, const Request& other) const;
  // Whether one of the requests before this one is reading what this one could take from the cache then: one that holds
  // pages, or one of its tenant that begins before it.
  bool waits_for_prompt(const Request& request, std::span<Request* const> before) const;

  // Begins to fetch from outside memory what a request that may start now would run otherwise, where that is worth it.
  // Returns whether the request fetches now. REQUIRES: kWaiting.
  bool begin_fetch(Request& request, double seconds_per_token);
  // Starts a request with a cached prefix, or with an empty sequence. REQUIRES: kWaiting, it continues no session.
  void start(Request& request);
  // Counts what a request's first start took from the cache. Call it once it is certain that its pass runs.
  void count_start(Request& request);

  // Leaves what others may continue, at the end of a chunk of the request's prompt.
  void publish(Request& request);
  // Leaves what an ended request held. Does nothing if `sequence` is null.
  void publish_last(const Request& request, std::unique_ptr<Sequence> sequence);
  // Drops what may hold the damaged numbers of a request.
  void discard(const Request& request);
  // Returns why a group's prompt took no more tokens from the cache. Empty: it took all it could.
  std::string_view miss_name(const RequestGroup& group) const;

 private:
  std::shared_ptr<Driver> driver_;
  RequestCounters* counters_;
  std::unique_ptr<PrefixStore> store_;  // null: nothing is cached
  RequestTiers tiers_;                  // destroyed before store_
};

}  // namespace kvasir
