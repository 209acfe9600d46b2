// The requests of an engine, by priority, then by arrival, and the passes that advance them together.
//
// The first sample of a request reads the prompt; then the others are forked from it. Before each pass the scheduler
// (scheduler/schedule.h) decides from plain numbers who runs. A preempted sample keeps its tokens and its generation,
// from which it continues later.
//
// The states of a request: request.h. Each part of the queue knows only those above it:
//
//   RequestList         the requests in their order
//   RequestEvents       events not returned to callers yet
//   RequestPrefixes     what requests may continue and leave: the prefix cache and the stores behind it
//   RequestMemory       the bytes that requests hold, need and share
//   RequestPreemption   who gives up its pages, by recomputing or by the swap file
//   RequestShadows      full attention beside requests that promise quality
//   LeavingSessions     memory that will be freed by session owners
//   RequestCompletion   the end of requests
//   RequestScheduler    the scheduler's data about requests
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
  explicit RequestQueue(std::shared_ptr<BatchRunner> runner, const ScheduleLimits& limits = {}, double max_itl = 0);
  ~RequestQueue();
  RequestQueue(const RequestQueue&) = delete;
  RequestQueue& operator=(const RequestQueue&) = delete;

  // Makes requests continue cached prefixes and leave their own. `most_bytes`: see PrefixCache.
  void cache_prefixes(std::uint64_t most_bytes) { prefixes_.enable(most_bytes); }
  // Lets preempted tasks leave their pages in this file if that is cheaper than recomputing them. `always`: whenever
  // possible, for tests.
  void swap_to(std::unique_ptr<SpillFile> file, bool always = false) { preemption_.swap_to(std::move(file), always); }
  // Keeps prefixes in these places too, nearest first. REQUIRES: cache_prefixes was called.
  void store_prefixes(std::vector<std::unique_ptr<BlobStore>> stores, PrefixTiers::Warn warn);
  // See Engine. REQUIRES: the quota was checked.
  void set_quota(int tenant, const TenantQuota& quota) { admissions_.set_quota(tenant, quota); }
  // Sets how many bytes of sessions are copied from their files between two passes.
  void set_load_bytes(std::uint64_t bytes) { passes_.set_load_bytes(bytes); }

  // Adds a request. `text`: that of `options`. `policy`: in its initial state. `chunk`: of prompts; 0: the policy's
  // own; nullopt: the engine's option. `codec`: nullopt: that of the cache's shape, or of the continued session.
  // REQUIRES: text and policy were checked; the cache allows the codec.
  RequestId add(const RequestOptions& options, RequestText text, std::unique_ptr<RetentionPolicy> policy,
                std::optional<int> chunk = {}, std::optional<KvCodec> codec = {});
  // See Engine.
  Result<std::vector<Event>> poll();
  Status cancel(RequestId request);
  std::int64_t unfinished() const { return requests_.size() + events_.untold(); }

  // Figures of what the queue has done and holds:
  const Counters& counters() const { return counters_; }
  std::int64_t running() const { return requests_.holding_pages(); }  // requests that hold pages
  std::vector<TenantReport> tenants() const;
  SwapReport swap_report() const { return preemption_.report(); }
  std::vector<PrefixTierReport> tier_report() const { return prefixes_.tiers().report(); }
  std::uint64_t tier_buffers() const { return prefixes_.tiers().buffer_bytes(); }
  PrefixCache* prefixes() { return prefixes_.cache(); }
  const EndedViews& ended_views() const { return completion_.views(); }
  // Calls visit for each sample that has not ended, by request.
  void each_sample(const std::function<void(const SampleInfo&)>& visit) const;

  // Returns whether a store outside memory has yet to answer.
  bool settling() const { return prefixes_.tiers().busy(); }
  // Waits until such a store has answered, at most so long. For tests.
  void settle_tiers(std::chrono::milliseconds most);
  // Returns a sample; null once its request has been removed. For tests.
  const Request* find(RequestId request, int sample) const;
  // Returns the sequence of a sample; null while it holds none, and once it has ended. For tests.
  const Sequence* sequence_of(RequestId request, int sample) const;

 private:
  RequestParts parts();

  std::shared_ptr<BatchRunner> runner_;
  Counters counters_;
  Admissions admissions_;
  RequestList requests_;
  RequestEvents events_;
  RequestPrefixes prefixes_;
  RequestMemory memory_;
  RequestPreemption preemption_;
  RequestShadows shadows_;
  LeavingSessions sessions_;
  RequestCompletion completion_;
  RequestPasses passes_;
  std::uint64_t next_id_ = 1;
};

}  // namespace kvasir
