#include "requests/request_preemption.h"

#include <algorithm>
#include <utility>

namespace kvasir {
namespace {

// Returns whether a request shares pages with its session or with samples of its group. After a swap it would come back
// with its own copies, more than it was admitted with.
bool shares_pages(const Request& request) {
  const RequestGroup& group = request.group();
  if (group.session.base != nullptr && !group.session.base->stored()) return true;
  if (group.samples == 1) return false;
  const KvSequence& tables = request.sequence()->tables();
  return tables.own_page_bytes() < tables.page_bytes();
}

}  // namespace

// Adds its lifetime to the seconds that swapping takes between two passes.
class RequestPreemption::PauseTimer {
 public:
  explicit PauseTimer(RequestPreemption* of) : of_(of) {}
  PauseTimer(const PauseTimer&) = delete;
  PauseTimer& operator=(const PauseTimer&) = delete;
  ~PauseTimer() {
    of_->pause_ += seconds_between(began_, RequestClock::now());
    of_->counters_->longest_swap = std::max(of_->counters_->longest_swap, of_->pause_);
  }

 private:
  RequestPreemption* of_;
  RequestClock::time_point began_ = RequestClock::now();
};

RequestPreemption::RequestPreemption(std::shared_ptr<BatchRunner> runner, const RequestList* requests,
                                     RequestPrefixes* prefixes, const RequestMemory* memory,
                                     const Admissions* admissions, RequestCounters* counters)
    : runner_(std::move(runner)),
      requests_(requests),
      prefixes_(prefixes),
      memory_(memory),
      admissions_(admissions),
      counters_(counters) {}

void RequestPreemption::swap_to(std::unique_ptr<SpillFile> file, bool always) {
  file_ = std::move(file);
  always_ = always;
}

PreemptionCost RequestPreemption::cost(Request& request) const {
  const Task& task = request.task();
  RecomputeWork work{task.prompt_done(), task.known_tokens() - task.prompt_tokens()};
  work.by_range = !request.group().policy->by_token();
  work.cached = prefixes_->find(request);
  PreemptionCost cost = admissions_->cost(work);
  if (!can_swap(request)) return cost;
  // Leaving and coming back take at least one pass each.
  cost.swap = rates_.seconds(request.sequence()->bytes()) + 2 * admissions_->rates().rates().pass;
  if (always_) cost.swap = 0;
  return cost;
}

// Returns whether a request's pages can go to the swap file. A sequence can be saved only between chunks, and not while
// a fork of it that repeats the text has its pages too. Pages of a session that is still being loaded are in a file
// already.
bool RequestPreemption::can_swap(Request& request) const {
  const Sequence& sequence = *request.sequence();
  return file_ != nullptr && sequence.offloaded().empty() && request.is(RequestState::kRunning) &&
         !sequence.in_chunk() && sequence.part() == nullptr && request.session_pages().done() &&
         !shares_pages(request) && SwappedSequence::has_room(*file_, sequence);
}

void RequestPreemption::preempt(Request& request) {
  ++counters_->preempted;
  ++request.progress.preemptions;
  counters_->preempted_twice += request.progress.spared ? 1 : 0;
  request.progress.spared = true;
  if (request.is(RequestState::kSwappingIn)) return request.cancel_swap_in();
  request.bytes.released = memory_->report(request);
  if (!begin_swap_out(request)) recompute(request);
}

// Sends a request's pages to the swap file. Returns false if recomputing is cheaper or there is no room.
bool RequestPreemption::begin_swap_out(Request& request) {
  const PauseTimer timer(this);
  const PreemptionCost cost = this->cost(request);
  if (cost.swap >= cost.recompute) {
    rates_.note_unused();
    return false;
  }
  std::unique_ptr<SwappedSequence> swap = SwappedSequence::leave(file_.get(), *request.sequence());
  if (swap == nullptr) return false;
  request.begin_swap_out(std::move(swap));
  request.prefix.found = 0;
  request.bytes.to_start = std::max(bytes_to_start(request, admissions_->most().ahead), request.swap().bytes_back());
  advance(request);
  return true;
}

// Frees what a request holds; it runs its tokens again later.
void RequestPreemption::recompute(Request& request) {
  request.release();
  request.bytes.to_start = bytes_to_start(request, admissions_->most().ahead);
  request.prefix.found_version = 0;  // it may have generated more since
}

Status RequestPreemption::swap_in(Request& request) {
  const PauseTimer timer(this);
  const auto arrive = [&] {
    return request.swap().arrive(runner_->model(), runner_->cache(), request.group().policy->clone());
  };
  Result<std::unique_ptr<Sequence>> sequence = arrive();
  while (!sequence.ok() && may_evict_for(request) && prefixes_->evict_one()) sequence = arrive();
  if (!sequence.ok()) return sequence.status();
  request.begin_swap_in(std::move(*sequence));
  advance(request);
  return {};
}

void RequestPreemption::advance() {
  pause_ = 0;
  if (!swapping()) return;
  const PauseTimer timer(this);
  file_->poll(std::chrono::milliseconds(0));
  // Leaving requests first: they make room for those that come back.
  const std::vector<Request*> active = requests_->active();
  for (const RequestState state : {RequestState::kSwappingOut, RequestState::kSwappingIn})
    for (Request* request : active)
      if (request->is(state)) advance(*request);
}

void RequestPreemption::advance(Request& request) {
  SwappedSequence& swap = request.swap();
  swap.advance();
  switch (swap.state()) {
    case SwappedSequence::State::kLeaving:
    case SwappedSequence::State::kComing: break;
    case SwappedSequence::State::kOut:
      rates_.note_out(swap.bytes(), swap.seconds_leaving());
      ++counters_->swapped_out;
      counters_->swap_bytes_out += swap.bytes();
      request.end_swap_out();
      break;
    case SwappedSequence::State::kBack:
      rates_.note_in(swap.bytes(), swap.seconds_coming());
      counters_->swap_bytes_in += swap.bytes();
      ++counters_->swapped_in;
      request.end_swap_in();
      break;
    case SwappedSequence::State::kFailed:
      rates_.note_failure();
      give_up_swap(request, swap.status().message());
      break;
  }
}

void RequestPreemption::wait(std::chrono::milliseconds most) {
  if (file_ != nullptr) file_->poll(most);
}

void RequestPreemption::give_up_swap(Request& request, std::string why) {
  ++counters_->swap_failed;
  counters_->why_swap_failed = std::move(why);
  recompute(request);
}

bool RequestPreemption::give_up_one_swapped() {
  Request* least = nullptr;
  const auto urgency = [](const Request* request) {
    return std::pair(-request->group().priority, request->progress.run);
  };
  for (Request* request : requests_->active())
    if (request->is(RequestState::kSwapped) && (least == nullptr || urgency(request) < urgency(least))) least = request;
  if (least == nullptr) return false;
  give_up_swap(*least, "there was no memory for what swapped requests keep in it");
  return true;
}

bool RequestPreemption::swapping() const {
  if (file_ == nullptr) return false;
  return requests_->has(RequestState::kSwappingOut) || requests_->has(RequestState::kSwappingIn);
}

std::uint64_t RequestPreemption::leaving_bytes() const {
  if (!swapping()) return 0;
  std::uint64_t bytes = 0;
  for (const Request* request : requests_->active())
    if (request->is(RequestState::kSwappingOut)) bytes += memory_->freed_by_preemption(*request);
  return bytes;
}

bool RequestPreemption::may_evict_for(const Request& request) const {
  return prefixes_->enabled() && (memory_->available() >= request.bytes.to_start || leaving_bytes() == 0);
}

SwapReport RequestPreemption::report() const {
  if (file_ == nullptr) return {};
  return {.capacity = file_->capacity(),
          .used = file_->used(),
          .buffers = SpillFile::kBufferBytes,
          .out = counters_->swapped_out,
          .in = counters_->swapped_in,
          .failed = counters_->swap_failed,
          .why_failed = counters_->why_swap_failed,
          .bytes_out = counters_->swap_bytes_out,
          .bytes_in = counters_->swap_bytes_in,
          .out_rate = rates_.out(),
          .in_rate = rates_.in(),
          .longest_pause = counters_->longest_swap,
          .method = file_->method()};
}

}  // namespace kvasir
