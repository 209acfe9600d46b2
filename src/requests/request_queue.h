// The requests of an engine, in order of priority and then of arrival, and the passes that move them on together.
//
// A request's prompt is read as one task; when it has been read, the other samples fork it. Each pass asks the
// scheduler (scheduler/schedule.h) with plain numbers who runs; a task that must give up its pages keeps its tokens and
// its generation, and is recomputed from these later (Task::release).
//
// Thread-safety: one caller at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/model_text.h"
#include "kvasir/request.h"
#include "prefix_store/prefix_store.h"
#include "prefix_store/prefix_tiers.h"
#include "requests/sequence_view.h"
#include "requests/swap.h"
#include "retention/policy.h"
#include "scheduler/admission.h"
#include "scheduler/driver.h"
#include "scheduler/schedule.h"
#include "session/session.h"

namespace kvasir {

// Checks the settings of a request but its policy. Errors: kInvalidArgument naming the field.
Status check_request(const LoadedModel& model, const RequestOptions& options);
// Returns the field that holds the prompt. Errors: kInvalidArgument unless it is one.
Result<std::string_view> prompt_field(const RequestOptions& options);
// See Engine::text.
std::unique_ptr<ModelText> make_model_text(std::shared_ptr<const LoadedModel> model);

// check_request, and encodes the prompt. Errors: kInvalidArgument naming the field.
Result<RequestText> encode_request(const LoadedModel& model, const RequestOptions& options);

// The Status, said to be about the field of RequestOptions that it came from unless it names others.
Status about_unless_said(Status status, std::string_view field);

class RequestQueue {
 public:
  // `max_itl`: see SchedulerOptions.
  explicit RequestQueue(std::shared_ptr<Driver> driver, const ScheduleLimits& limits = {}, double max_itl = 0);
  ~RequestQueue();

  // From now on requests continue what others left, and leave prefixes themselves. `most_bytes`: see PrefixCache.
  void cache_prefixes(std::uint64_t most_bytes);
  // From now on a task that gives up its pages may leave them in this file, where that is cheaper than to recompute
  // them. `always`: wherever it is possible, for tests.
  void swap_to(std::unique_ptr<SpillFile> file, bool always = false);
  // From now on prefixes are also kept in these places, from near to far. REQUIRES: cache_prefixes was called.
  void store_prefixes(std::vector<std::unique_ptr<BlobStore>> stores, PrefixTiers::Warn warn);
  std::vector<PrefixTierReport> tier_report() const;
  std::uint64_t tier_buffers() const { return tiers_ != nullptr ? tiers_->buffer_bytes() : 0; }
  bool settling() const { return tiers_ != nullptr && tiers_->busy(); }
  // Waits until such a place has answered, or so long. For tests.
  void settle_tiers(std::chrono::milliseconds most);
  PrefixCache* prefixes() { return prefixes_ ? &prefixes_->cache() : nullptr; }

  // `text` is that of `options`, `policy` as it stands at its start, `chunk` that of prompts (0: the policy's
  // own; without one, that of the engine's options). `codec`: none: that of the cache's shape, or of the session that
  // the request continues. REQUIRES: text and policy were checked, the cache allows the codec.
  RequestId add(const RequestOptions& options, RequestText text, std::unique_ptr<RetentionPolicy> policy,
                std::optional<int> chunk = {}, std::optional<KvCodec> codec = {});

  // See Engine. REQUIRES: the quota was checked.
  void set_quota(int tenant, const TenantQuota& quota) { admissions_.set_quota(tenant, quota); }

  // See Engine.
  Result<std::vector<Event>> poll();
  Status cancel(RequestId request);
  std::int64_t unfinished() const { return static_cast<std::int64_t>(requests_.size()) + untold_; }

  // Totals since the start. Tests use them to assert that the event they are about took place.
  struct Counters {
    std::int64_t passes = 0;
    std::int64_t mixed = 0;            // passes of prompt rows and generated rows
    std::int64_t mixed_rows = 0;       // prompt rows of these
    int most_mixed_rows = 0;           // in one of these
    std::int64_t prepared = 0;         // turns of tasks that may draw within their pass
    std::int64_t preempted = 0;        // tasks that gave up their pages
    std::int64_t rejected = 0;         // that ended because the memory does not suffice for them alone
    std::size_t most_running = 0;      // tasks in a pass
    int most_rows = 0;                 // of prompts in a pass
    std::int64_t prefix_queries = 0;   // prompt tokens of requests that asked the prefix cache
    std::int64_t prefix_hits = 0;      // of these, found there
    std::int64_t preempted_twice = 0;  // tasks that gave up their pages before a token came since the last time
    std::int64_t over_ceiling = 0;     // tasks that ended because their tenant's ceiling is too low for them alone
    std::int64_t prompt_tokens = 0;    // read or taken from the prefix cache
    std::int64_t generated_tokens = 0;
    std::int64_t recomputed_tokens = 0;  // that were run again after a preemption
    std::int64_t evicted_tokens = 0;     // dropped by policies, of samples that ended
    std::int64_t swapped_out = 0;        // of `preempted`, those that have left for the swap file
    std::int64_t swapped_in = 0;         // and came back from there
    std::int64_t swap_failed = 0;        // and were recomputed, as the file could not be written or read
    std::string why_swap_failed;         // of the newest
    std::uint64_t swap_bytes_out = 0;
    std::uint64_t swap_bytes_in = 0;
    double longest_swap = 0;   // seconds between two passes that swapping took, at most
    double longest_mixed = 0;  // seconds of the longest pass of prompt rows and generated rows
    // Most seconds that one of these was expected to take, of those with more than kLeastPromptRows.
    double longest_expected = 0;
  };
  const Counters& counters() const { return counters_; }
  // Bytes of sessions that are copied from their files between two passes.
  void set_load_bytes(std::uint64_t bytes) { load_bytes_ = bytes; }
  std::int64_t running() const;  // requests that hold pages
  std::vector<TenantReport> tenants() const;
  // Calls visit for each sample that has not ended, request by request.
  void each_sample(const std::function<void(const SampleState&)>& visit) const;
  SwapReport swap_report() const;
  const EndedViews& ended_views() const { return ended_views_; }
  // The sequence of a sample; null while it holds none, and once it has ended. For tests.
  const Sequence* sequence_of(RequestId request, int sample) const;

 private:
  struct Member;   // one sample
  struct Request;  // its samples in order

  void advance();
  bool run_pass();
  std::vector<Member*> members() const;
  std::vector<ScheduleTask> tasks_of(std::span<Member* const> members, int prompt_rows) const;
  std::vector<Verdict> decide(std::span<Member* const> members, bool unshared = false) const;
  std::vector<Verdict> decide_with_prefixes(std::span<Member* const> members);
  std::uint64_t copies_for_prefixes(Member& member, int rows) const;
  void note_start(Member& member);
  std::uint64_t bytes_to_start(const Member& member) const;
  void note_leaving(const Request& request);
  void add_leaving(std::vector<ScheduleTask>& tasks) const;
  std::uint64_t estimate(const Member& member) const;
  std::uint64_t used(const Member& member) const;
  std::uint64_t bytes_in_use(const Member& member, std::span<Member* const> all) const;
  void share_among_requests(std::span<Member* const> all, std::vector<ScheduleTask>& tasks) const;
  void preempt(Member& member);
  PreemptionCost cost_of(Member& member) const;
  bool begin_swap(Member& member);
  class PauseTimer;
  void advance_swaps();
  void advance_swap(Member& member);
  void give_up_swap(Member& member, std::string why);
  Status come_back(Member& member);
  bool forget_one_swapped();
  bool swapping() const;
  bool may_evict_for(const Member& member) const;
  bool shares_with_its_own(const Member& member) const;
  std::uint64_t leaving_bytes() const;
  void defer_what_waits_for_swap(std::vector<Turn>* turns, std::vector<Member*>* running);
  void leave_outside(const Member& member, std::int64_t seen, std::int64_t from);
  void leave_snapshot_outside(const Member& member);
  bool begin_fetch(Member& member);
  bool waits_for_fetch(Member& member) const;
  bool fetching() const { return tiers_ != nullptr && tiers_->fetching(); }
  void undo_start(Member& member);
  void reject(Member& member, Decision decision);
  Status start(Member& member);
  std::int64_t tokens_found(Member& member) const;
  std::int64_t will_find(const Member& member, const Member& other) const;
  bool waits_for_prefix(const Member& member, std::span<Member* const> before) const;
  static PrefixText text_of(const Member& member);
  std::uint64_t available() const;
  void leave_prefix(Member& member);
  void run(std::span<const Turn> turns, std::span<Member* const> running);
  void collect(Member& member);
  KvReport report_of(Member& member);
  static std::vector<GeneratedToken> fresh_choices(Member& member);
  void fork_samples(Request& request);
  void settle(Member& member);
  void end(Member& member, const Status& why = {});
  void tell_end(Member& member, const Status& why);
  void remove_ended();
  Event event_of(const Member& member, Event::Kind kind) const;
  static SampleState state_of(const Member& member);

  std::shared_ptr<Driver> driver_;
  std::unique_ptr<SpillFile> swap_file_;  // null: nothing is swapped
  SwapRates swap_rates_;
  double swap_pause_ = 0;  // seconds that swapping took since the last pass
  bool always_swap_ = false;
  std::unique_ptr<PrefixStore> prefixes_;  // null: nothing is cached
  std::unique_ptr<PrefixTiers> tiers_;     // null: prefixes are in memory alone. Destroyed before prefixes_
  Admissions admissions_;
  std::uint64_t next_id_ = 1;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Event> events_;  // that poll has not returned yet
  std::int64_t untold_ = 0;    // requests whose last event is among them
  // Sessions of requests that have ended, which their owners are about to destroy.
  struct Leaving {
    std::weak_ptr<const void> life;
    const SessionBase* session;
    int tenant;
  };
  std::vector<Leaving> leaving_;
  std::uint64_t load_bytes_ = std::uint64_t{32} << 20;  // some 10 ms
  Counters counters_;
  EndedViews ended_views_;
};

}  // namespace kvasir
