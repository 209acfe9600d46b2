// The requests of an engine, in order of priority and then of arrival, and the passes that move them on together.
//
// The first sample of a request reads the prompt. When it has been read, the other samples are forked from the first.
// Before each pass the scheduler (scheduler/schedule.h) decides from plain numbers who runs. A sample that must give up
// its pages keeps its tokens and its generation. It goes on from these later.
//
// The states of a request: request.h. The queue consists of parts, each of which knows those above it alone:
//
//   RequestList         the requests in their order
//   RequestEvents       what callers have not been told of yet
//   RequestPrefixes     what requests may continue and leave: the prefix cache and the stores behind it
//   RequestMemory       the bytes that requests hold, need and share
//   RequestPreemption   who gives up its pages, by recomputing or by the swap file
//   LeavingSessions     memory that comes free by itself
//   RequestCompletion   the end of requests
//   RequestScheduler    what the scheduler is told
//   RequestPasses       rounds and passes
//
// Thread-safety: one caller at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kvasir/request.h"
#include "requests/request_parts.h"
#include "requests/request_passes.h"
#include "requests/sequence_view.h"
#include "retention/policy.h"

namespace kvasir {

class RequestQueue {
 public:
  using Counters = RequestCounters;

  // `max_itl`: see SchedulerOptions.
  explicit RequestQueue(std::shared_ptr<Driver> driver, const ScheduleLimits& limits = {}, double max_itl = 0);
  ~RequestQueue();
  RequestQueue(const RequestQueue&) = delete;
  RequestQueue& operator=(const RequestQueue&) = delete;

  // From now on requests continue what others left, and leave prefixes themselves. `most_bytes`: see PrefixCache.
  void cache_prefixes(std::uint64_t most_bytes) { prefixes_.enable(most_bytes); }
  // From now on a task that gives up its pages may leave them in this file, where that is cheaper than to recompute
  // them. `always`: wherever it is possible, for tests.
  void swap_to(std::unique_ptr<SpillFile> file, bool always = false) { preemption_.swap_to(std::move(file), always); }
  // From now on prefixes are also kept in these places, from near to far. REQUIRES: cache_prefixes was called.
  void store_prefixes(std::vector<std::unique_ptr<BlobStore>> stores, PrefixTiers::Warn warn);
  // See Engine. REQUIRES: the quota was checked.
  void set_quota(int tenant, const TenantQuota& quota) { admissions_.set_quota(tenant, quota); }
  // Sets how many bytes of sessions are copied from their files between two passes.
  void set_load_bytes(std::uint64_t bytes) { passes_.set_load_bytes(bytes); }

  // `text` is that of `options`, `policy` as it stands at its start, `chunk` that of prompts (0: the policy's
  // own; without one, that of the engine's options). `codec`: none: that of the cache's shape, or of the session that
  // the request continues. REQUIRES: text and policy were checked, the cache allows the codec.
  RequestId add(const RequestOptions& options, RequestText text, std::unique_ptr<RetentionPolicy> policy,
                std::optional<int> chunk = {}, std::optional<KvCodec> codec = {});
  // See Engine.
  Result<std::vector<Event>> poll();
  Status cancel(RequestId request);
  std::int64_t unfinished() const { return requests_.size() + events_.untold(); }

  // What a queue has done and holds.
  const Counters& counters() const { return counters_; }
  std::int64_t running() const { return requests_.holding_pages(); }  // requests that hold pages
  std::vector<TenantReport> tenants() const;
  SwapReport swap_report() const { return preemption_.report(); }
  std::vector<PrefixTierReport> tier_report() const { return prefixes_.tiers().report(); }
  std::uint64_t tier_buffers() const { return prefixes_.tiers().buffer_bytes(); }
  PrefixCache* prefixes() { return prefixes_.cache(); }
  const EndedViews& ended_views() const { return completion_.views(); }
  // Calls visit for each sample that has not ended, request by request.
  void each_sample(const std::function<void(const SampleInfo&)>& visit) const;

  // Whether a store outside memory is to answer yet.
  bool settling() const { return prefixes_.tiers().busy(); }
  // Waits until such a store has answered, or so long. For tests.
  void settle_tiers(std::chrono::milliseconds most);
  // Returns a sample, or null once its request has been removed. For tests.
  const Request* find(RequestId request, int sample) const;
  // Returns the sequence of a sample; null while it holds none, and once it has ended. For tests.
  const Sequence* sequence_of(RequestId request, int sample) const;

 private:
  RequestParts parts();

  std::shared_ptr<Driver> driver_;
  Counters counters_;
  Admissions admissions_;
  RequestList requests_;
  RequestEvents events_;
  RequestPrefixes prefixes_;
  RequestMemory memory_;
  RequestPreemption preemption_;
  LeavingSessions sessions_;
  RequestCompletion completion_;
  RequestPasses passes_;
  std::uint64_t next_id_ = 1;
};

}  // namespace kvasir
