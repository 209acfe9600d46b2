// The prefix cache of a queue: what a request may continue, and what it leaves for others.
//
// Nothing here has an effect before enable() is called.
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
#include "scheduler/batch_runner.h"

namespace kvasir {

class RequestPrefixes {
 public:
  // `counters` outlives this.
  RequestPrefixes(std::shared_ptr<BatchRunner> runner, RequestCounters* counters);

  // Starts to cache prefixes. `most_bytes`: see PrefixCache.
  void enable(std::uint64_t most_bytes);
  // Starts to keep them in these stores too, nearest first. REQUIRES: enable() was called.
  void store_in(std::vector<std::unique_ptr<BlobStore>> stores, PrefixTiers::Warn warn);
  bool enabled() const { return store_ != nullptr; }
  PrefixCache* cache() const { return store_ != nullptr ? &store_->cache() : nullptr; }
  RequestTiers& tiers() { return tiers_; }
  const RequestTiers& tiers() const { return tiers_; }

  // Drops expired prefixes.
  void expire();
  // Evicts the cache's least useful entry. Returns false if none can be evicted.
  bool evict_one();
  std::uint64_t evictable_bytes() const;  // total that evict_one() can free
  std::uint64_t charged_bytes() const;    // of the cache's own structures
  PageOwner owner() const;                // of the cache's pages

  // Returns the tokens that a request without a sequence would not have to run.
  std::int64_t find(Request& request) const;
  // Returns how many tokens a request could take from the cache once another's prompt has been read.
  std::int64_t will_find(const Request& request, const Request& other) const;
  // Returns whether a request before this one is reading what this one could then take from the cache: one that holds
  // pages, or one of its tenant that begins before it.
  bool waits_for_prompt(const Request& request, std::span<Request* const> before) const;

  // Begins to fetch from outside memory what a request that may start now would otherwise run, if that pays. Returns
  // whether the request now fetches. REQUIRES: kWaiting.
  bool begin_fetch(Request& request, double seconds_per_token);
  // Starts a request with a cached prefix or an empty sequence. REQUIRES: kWaiting; it continues no session.
  void start(Request& request);
  // Counts what a request's first start took from the cache. Call it once its pass is certain to run.
  void count_start(Request& request);

  // Caches what others may continue, at the end of a chunk of the request's prompt.
  void publish(Request& request);
  // Caches what an ended request held. Does nothing if `sequence` is null.
  void publish_last(const Request& request, std::unique_ptr<Sequence> sequence);
  // Drops the cached prefixes that may hold the damaged numbers of a request.
  void discard(const Request& request);
  // Returns why a group's prompt took no more tokens from the cache; empty if it took all it could.
  std::string_view miss_name(const RequestGroup& group) const;

 private:
  std::shared_ptr<BatchRunner> runner_;
  RequestCounters* counters_;
  std::unique_ptr<PrefixStore> store_;  // null: nothing is cached
  RequestTiers tiers_;                  // destroyed before store_
};

}  // namespace kvasir
