// The requests of an engine, in order of arrival, and the passes that move them on together.
//
// A request's prompt is read as one task; when it has been read, the other samples fork it. Each pass asks the
// scheduler (engine/schedule.h) with plain numbers who runs; a task that must give up its pages keeps its tokens and
// its generation, and is recomputed from these later (Task::release).
//
// Thread-safety: one caller at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/driver.h"
#include "engine/schedule.h"
#include "engine/sequence_view.h"
#include "kvasir/request.h"
#include "retention/policy.h"

namespace kvasir {

// A request's text as token ids.
struct RequestText {
  std::vector<TokenId> tokens;
  std::vector<std::string> stops;  // of the chat template, for messages
};

// Checks all of a request but its policy, and encodes its prompt. Errors: kInvalidArgument naming the field.
Result<RequestText> encode_request(const LoadedModel& model, const RequestOptions& options);

// The Status, said to be about the field of RequestOptions that it came from unless it names others.
Status about_unless_said(Status status, std::string_view field);

class RequestQueue {
 public:
  explicit RequestQueue(std::shared_ptr<Driver> driver, const ScheduleLimits& limits = {});
  ~RequestQueue();

  // `text` is that of `options`, `policy` as it stands at its start, `chunk` that of prompts (0: the policy's
  // own; without one, that of the engine's options). REQUIRES: text and policy were checked.
  RequestId add(const RequestOptions& options, RequestText text, std::unique_ptr<RetentionPolicy> policy,
                std::optional<int> chunk = {});

  // See Engine.
  Result<std::vector<Event>> poll();
  Status cancel(RequestId request);
  std::int64_t unfinished() const { return static_cast<std::int64_t>(requests_.size()) + untold_; }

  // What happened so far. For tests: that what they are about did happen.
  struct Counters {
    std::int64_t passes = 0;
    std::int64_t mixed = 0;        // passes of prompt rows and generated rows
    std::int64_t preempted = 0;    // tasks that gave up their pages
    std::int64_t rejected = 0;     // that ended because the memory does not suffice for them alone
    std::size_t most_running = 0;  // tasks in a pass
    int most_rows = 0;             // of prompts in a pass
  };
  const Counters& counters() const { return counters_; }
  // Calls visit for each sample that has not ended, oldest request first.
  void each_sample(const std::function<void(const SampleState&)>& visit) const;
  const EndedViews& ended_views() const { return ended_views_; }

  // The sequence of a sample; null while it holds none, and once it has ended. For tests.
  const Sequence* sequence_of(RequestId request, int sample) const;

 private:
  struct Member;   // one sample
  struct Request;  // its samples in order

  void advance();
  bool run_pass();
  std::vector<Member*> members() const;
  std::vector<int> rows_of(std::span<Member* const> members) const;
  std::vector<Decision> decide(std::span<Member* const> members, std::span<const int> rows) const;
  std::uint64_t bytes_to_start(const Member& member) const;
  void start(Member& member) const;
  void run(std::span<const Turn> turns, std::span<Member* const> running);
  void collect(Member& member);
  KvReport report_of(Member& member) const;
  void fork_samples(Request& request);
  void settle(Member& member);
  void end(Member& member, const Status& why = {});
  void tell_end(Member& member, const Status& why);
  void remove_ended();
  SampleState state_of(const Member& member) const;
  Event event_of(const Member& member, Event::Kind kind) const;

  std::shared_ptr<Driver> driver_;
  ScheduleLimits limits_;
  std::uint64_t next_id_ = 1;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Event> events_;  // that poll has not returned yet
  std::int64_t untold_ = 0;    // requests whose last event is among them
  Counters counters_;
  EndedViews ended_views_;
};

}  // namespace kvasir
