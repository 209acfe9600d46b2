// Requests whose pages are in the swap file, or on their way.
#include <algorithm>
#include <chrono>
#include <utility>

#include "planning/memory_plan.h"
#include "requests/request_members.h"
#include "requests/request_queue.h"
#include "sequence/kv_report.h"

namespace kvasir {

void RequestQueue::swap_to(std::unique_ptr<SpillFile> file, bool always) {
  swap_file_ = std::move(file);
  always_swap_ = always;
}

SwapReport RequestQueue::swap_report() const {
  if (swap_file_ == nullptr) return {};
  return {.capacity = swap_file_->capacity(),
          .used = swap_file_->used(),
          .buffers = SpillFile::kBufferBytes,
          .out = counters_.swapped_out,
          .in = counters_.swapped_in,
          .failed = counters_.swap_failed,
          .why_failed = counters_.why_swap_failed,
          .bytes_out = counters_.swap_bytes_out,
          .bytes_in = counters_.swap_bytes_in,
          .out_rate = swap_rates_.out(),
          .in_rate = swap_rates_.in(),
          .longest_pause = counters_.longest_swap,
          .method = swap_file_->method()};
}

// Adds the time that it lives to what swapping takes between two passes.
class RequestQueue::PauseTimer {
 public:
  explicit PauseTimer(RequestQueue* queue) : queue_(queue) {}
  PauseTimer(const PauseTimer&) = delete;
  PauseTimer& operator=(const PauseTimer&) = delete;
  ~PauseTimer() {
    queue_->swap_pause_ += std::chrono::duration<double>(RequestClock::now() - began_).count();
    queue_->counters_.longest_swap = std::max(queue_->counters_.longest_swap, queue_->swap_pause_);
  }

 private:
  RequestQueue* queue_;
  RequestClock::time_point began_ = RequestClock::now();
};

// Whether a member shares pages with the session that it continues, or with samples of its request. Swapped, it would
// come back with copies of its own, more than it was admitted with.
bool RequestQueue::shares_with_its_own(const Member& member) const {
  const SessionBase* base = member.request->base;
  if (base != nullptr && !base->stored()) return true;
  if (member.request->samples == 1) return false;
  const KvSequence& tables = member.text.sequence->tables();
  return tables.own_page_bytes() < tables.page_bytes();
}

// What it costs to preempt a member that holds pages.
PreemptionCost RequestQueue::cost_of(Member& member) const {
  const Task& task = *member.task;
  RecomputeWork work{task.prompt_done(), task.known_tokens() - task.prompt_tokens()};
  work.by_range = !member.request->policy->by_token();
  work.cached = tokens_found(member);
  PreemptionCost cost = admissions_.cost(work);
  const Sequence& sequence = *member.text.sequence;
  // Between chunks only is a sequence a snapshot; one whose session is still being loaded has it in a file already.
  const bool possible = swap_file_ != nullptr && sequence.is_whole() && member.swap == nullptr &&
                        !sequence.in_chunk() && member.pages.done() && !shares_with_its_own(member) &&
                        SwappedSequence::has_room(*swap_file_, sequence);
  // Both ways take a pass at least.
  if (possible) cost.swap = swap_rates_.seconds(sequence.bytes()) + 2 * admissions_.rates().rates().pass;
  if (possible && always_swap_) cost.swap = 0;
  return cost;
}

// Sends a member's sequence to the swap file. False, where recomputing is cheaper or there is no room.
bool RequestQueue::begin_swap(Member& member) {
  const PauseTimer timer(this);
  const PreemptionCost cost = cost_of(member);
  if (cost.swap >= cost.recompute) {
    swap_rates_.note_unused();
    return false;
  }
  member.swap = SwappedSequence::leave(swap_file_.get(), *member.text.sequence);
  if (member.swap == nullptr) return false;
  member.found = 0;
  member.bytes_to_start = std::max(bytes_to_start(member), member.swap->bytes_back());
  advance_swap(member);
  return true;
}

// Moves all swaps on by what the buffers take.
void RequestQueue::advance_swaps() {
  swap_pause_ = 0;
  if (!swapping()) return;
  const PauseTimer timer(this);
  swap_file_->poll(std::chrono::milliseconds(0));
  // What leaves makes room for what comes.
  const std::vector<Member*> all = members();
  for (Member* member : all)
    if (member->is_leaving()) advance_swap(*member);
  for (Member* member : all)
    if (member->is_coming()) advance_swap(*member);
}

void RequestQueue::advance_swap(Member& member) {
  SwappedSequence& swap = *member.swap;
  swap.advance();
  if (swap.state() == SwappedSequence::State::kFailed) {
    swap_rates_.note_failure();
    return give_up_swap(member, swap.status().message());
  }
  if (swap.state() == SwappedSequence::State::kOut && member.text.sequence != nullptr) {
    swap_rates_.note_out(swap.bytes(), swap.seconds_leaving());
    ++counters_.swapped_out;
    counters_.swap_bytes_out += swap.bytes();
    member.text.sequence.reset();
  }
  if (swap.state() == SwappedSequence::State::kBack) {
    swap_rates_.note_in(swap.bytes(), swap.seconds_coming());
    counters_.swap_bytes_in += swap.bytes();
    ++counters_.swapped_in;
    member.swap.reset();
  }
}

// The member is recomputed.
void RequestQueue::give_up_swap(Member& member, std::string why) {
  ++counters_.swap_failed;
  counters_.why_swap_failed = std::move(why);
  member.swap.reset();
  member.run = 0;
  member.task->release();
  member.bytes_to_start = bytes_to_start(member);
  member.found_version = 0;
}

// Has one request that is in the swap file recomputed: what it keeps in memory is missing. It is one of the least
// urgent, and of these the one that ran the fewest tokens. False: there is none.
bool RequestQueue::forget_one_swapped() {
  Member* least = nullptr;
  const auto cost = [](const Member* member) { return std::pair(-member->request->priority, member->run); };
  for (Member* member : members())
    if (member->is_out() && (least == nullptr || cost(member) < cost(least))) least = member;
  if (least == nullptr) return false;
  give_up_swap(*least, "there was no memory for what swapped requests keep in it");
  return true;
}

// Begins to bring a member's sequence back. Errors: kResourceExhausted.
Status RequestQueue::come_back(Member& member) {
  const PauseTimer timer(this);
  const auto again = [&] {
    return member.swap->arrive(driver_->model(), driver_->cache(), member.request->policy->clone());
  };
  Result<std::unique_ptr<Sequence>> sequence = again();
  while (!sequence.ok() && may_evict_for(member) && prefixes_->cache().evict_one()) sequence = again();
  if (!sequence.ok()) return sequence.status();
  member.text.sequence = std::move(*sequence);
  advance_swap(member);
  return {};
}

// Whether cached prefixes are to give way to a member that starts: not where that would not suffice, and where it need
// only wait for memory that is on its way out.
bool RequestQueue::may_evict_for(const Member& member) const {
  return prefixes_ != nullptr && (available() >= member.bytes_to_start || leaving_bytes() == 0);
}

bool RequestQueue::swapping() const {
  if (swap_file_ == nullptr) return false;
  return std::ranges::any_of(requests_, [](const std::unique_ptr<Request>& request) {
    return std::ranges::any_of(request->members, [](const std::unique_ptr<Member>& member) {
      return member->is_leaving() || member->is_coming();
    });
  });
}

// Bytes that come free once what leaves has left.
std::uint64_t RequestQueue::leaving_bytes() const {
  if (!swapping()) return 0;
  const PageOwner beside = prefixes_ ? prefixes_->cache().owner() : PageOwner::kNobody;
  std::uint64_t bytes = 0;
  for (const Member* member : members())
    if (member->is_leaving()) bytes += bytes_freed_without(*member->text.sequence, beside);
  return bytes;
}

// The scheduler counts what leaves as gone already: turns for which there is no room yet wait until it is.
void RequestQueue::defer_what_waits_for_swap(std::vector<Turn>* turns, std::vector<Member*>* running) {
  if (turns->empty() || driver_->plan(*turns).bytes <= available()) return;
  std::vector<Turn> left;
  std::vector<Member*> of;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < turns->size(); ++i) {
    const std::uint64_t more = driver_->plan((*turns)[i]).bytes;
    if (bytes + more <= available()) {
      bytes += more;
      left.push_back((*turns)[i]);
      of.push_back((*running)[i]);
    } else if ((*running)[i]->starts) {
      undo_start(*(*running)[i]);
    }
  }
  *turns = std::move(left);
  *running = std::move(of);
}

// A member that was to start holds nothing again.
void RequestQueue::undo_start(Member& member) {
  member.task->release();
  member.run = 0;
}

}  // namespace kvasir
