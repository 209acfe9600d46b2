// What a RequestQueue knows of each request and each of its samples. Private to request_queue.cc,
// request_schedule.cc and sequence_view.cc.
// Thread-safety: as RequestQueue.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "requests/request_queue.h"
#include "scheduler/task.h"
#include "session/session.h"

namespace kvasir {

using RequestClock = std::chrono::steady_clock;

struct RequestQueue::Member {
  Member(Request* of, int number) : request(of), sample(number) {}

  Request* request;
  int sample;
  TextState text;
  std::optional<Task> task;
  std::uint64_t bytes_to_start = 0;       // while it holds no pages
  std::uint64_t bytes_in_use = 0;         // of its peak, those of a prefix that another held when it started
  std::optional<KvReport> released;       // of the sequence that it gave up last, until it holds as much again
  SessionPages pages;                     // of its session, that are still to be filled; of a sequence that it holds
  std::unique_ptr<SwappedSequence> swap;  // from its preemption until its sequence is back
  bool ended = false;

  // Whether it may take part in a pass, or wait for one.
  bool is_leaving() const { return swap != nullptr && swap->state() == SwappedSequence::State::kLeaving; }
  bool is_out() const { return swap != nullptr && text.sequence == nullptr; }
  bool is_coming() const { return swap != nullptr && swap->state() == SwappedSequence::State::kComing; }
  std::int64_t left_prefix = 0;   // prompt tokens done when it last left a prefix
  bool starts = false;            // in the pass that is being made
  std::int64_t start_tokens = 0;  // that the prefix cache had for its newest start
  bool start_snapshot = false;    // as a snapshot
  PrefixMiss start_miss = PrefixMiss::kUnknown;
  std::shared_ptr<PrefixFetch> fetch;  // that it waits for
  bool asked_tiers = false;            // since it started last
  std::int64_t found_before = -1;      // tokens that the prefix cache had before anything was fetched; -1: nothing was
  std::string_view fetched_from;
  std::int64_t found = 0;           // tokens that the prefix cache has of its text
  std::uint64_t found_version = 0;  // of the prefix cache, when it was asked
  std::size_t told_choices = 0;     // of the generation's, those that events told of
  std::int64_t preemptions = 0;
  bool spared = false;          // it gave up its pages and has produced no token since
  std::int64_t run = 0;         // of its tokens, those that its sequence holds
  std::int64_t most_run = 0;    // and those that were run at some time
  std::int64_t generated = 0;   // tokens, when its last pass had run
  std::int64_t recomputed = 0;  // tokens run again
};

struct RequestQueue::Request {
  // Whether events have told of the whole prompt. The samples are forked then (collect()).
  bool has_read_prompt() const { return told == members.front()->task->prompt_tokens(); }

  RequestId id{};
  int samples = 1;
  std::uint64_t seed = 0;
  std::unique_ptr<RetentionPolicy> policy;  // as it stands at its start
  KvCacheShape shape;                       // the cache's, with pages of its codec
  int priority = 0;
  int tenant = 0;
  std::string label;
  bool inspect = false;
  std::uint64_t peak = 0;    // bytes of one sample, as Admissions::counted
  std::uint64_t shared = 0;  // of these, those that its samples share as long as they live
  std::vector<std::unique_ptr<Member>> members;
  std::shared_ptr<Session> session;  // that it continues, or null
  SessionBase* base = nullptr;       // the same
  bool releases_session = false;
  PrefixUse prefix;
  bool asked_prefix = false;
  std::int64_t cached = 0;  // prompt tokens that came from the prefix cache
  std::string_view cached_from;
  PrefixMiss miss = PrefixMiss::kUnknown;
  std::map<RequestId, std::int64_t> common_with;  // prompt tokens that others' prompts begin with, too
  std::int64_t told = 0;                          // prompt tokens that events told of
  RequestClock::time_point submitted = RequestClock::now();
  std::optional<RequestClock::time_point> started;  // when its first pass began
  RequestClock::time_point read = submitted;        // when the prompt was
};

}  // namespace kvasir
