// A submission: its settings, and its requests, one per sample; and the list of all submissions.
//
// The first request reads the prompt for all; then the other samples are forked from it.
// Thread-safety: as RequestQueue.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/request.h"
#include "requests/request.h"
#include "retention/policy.h"
#include "scheduler/admission.h"
#include "scheduler/batch_runner.h"

namespace kvasir {

using RequestClock = std::chrono::steady_clock;

inline double seconds_between(RequestClock::time_point from, RequestClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// The session that a group continues.
struct ContinuedSession {
  std::shared_ptr<Session> owner;
  SessionBase* base = nullptr;  // the same session; null: none
  bool released = false;        // RequestOptions::releases_session
};

// What a group's prompt took from the prefix cache.
struct GroupPrefix {
  PrefixUse use;
  std::int64_t lasting = 0;  // RequestOptions::lasting_tokens
  bool counted = false;      // the figures below are set
  std::int64_t cached = 0;   // prompt tokens from the cache
  std::string_view cached_from;
  PrefixMiss miss = PrefixMiss::kUnknown;
  std::map<RequestId, std::int64_t> common_with;  // length of the common prefix with another group's prompt, tokens
};

struct RequestGroup {
  // Returns whether events have reported the whole prompt.
  bool has_read_prompt() const { return told == requests.front()->task().prompt_tokens(); }
  // Returns whether all samples have ended.
  bool has_ended() const;
  // Returns whether it is a shadow (requests/shadow), of which callers hear nothing.
  bool is_shadow() const { return checked != nullptr; }

  RequestId id{};
  int samples = 1;
  std::uint64_t seed = 0;
  std::unique_ptr<RetentionPolicy> policy;  // in its initial state
  KvCacheShape shape;                       // the cache's, with pages of the group's codec
  int priority = 0;
  int tenant = 0;
  std::string label;
  bool inspect = false;
  std::uint64_t peak = 0;         // bytes of one sample, as Admissions::counted
  std::uint64_t shared_peak = 0;  // part of it that the samples share while they live
  ContinuedSession session;
  GroupPrefix prefix;
  Request* checked = nullptr;                      // of a shadow: the request that it measures
  std::vector<std::unique_ptr<Request>> requests;  // by sample
  std::int64_t told = 0;                           // prompt tokens reported in events
  RequestClock::time_point submitted = RequestClock::now();
  std::optional<RequestClock::time_point> started;  // when its first pass began
  RequestClock::time_point read = submitted;        // when the prompt was read
};

// Makes a group with its first request. See RequestQueue::add.
std::unique_ptr<RequestGroup> make_group(RequestId id, const RequestOptions& options, RequestText text,
                                         std::unique_ptr<RetentionPolicy> policy, std::optional<int> chunk,
                                         std::optional<KvCodec> codec, const BatchRunner& runner,
                                         const Admissions& admissions);

// Returns the bytes of all of a request's tokens and of `ahead` more: see ScheduleLimits::ahead.
std::uint64_t bytes_to_start(const Request& request, int ahead);

// Makes the samples behind the first. A sample without room for its page tables reads the prompt itself, later.
void fork_samples(RequestGroup& group, int ahead);

// The groups of a queue, by priority, then by arrival.
class RequestList {
 public:
  // Adds a group behind those of its priority.
  void add(std::unique_ptr<RequestGroup> group);
  // Adds a group right before another of its priority.
  void add_before(const RequestGroup& other, std::unique_ptr<RequestGroup> group);
  RequestGroup* find(RequestId id) const;  // null if there is none
  // Removes the groups whose samples have all ended. Returns their number, without shadows.
  std::int64_t remove_ended();
  void clear() { groups_.clear(); }

  bool empty() const { return groups_.empty(); }
  std::int64_t size() const;           // groups, without shadows
  std::int64_t holding_pages() const;  // of these, groups with a sample that holds pages
  // Returns the requests that have not ended, by group.
  std::vector<Request*> active() const;
  // Returns whether any request is in this state.
  bool has(RequestState state) const;

 private:
  std::vector<std::unique_ptr<RequestGroup>> groups_;
};

}  // namespace kvasir
