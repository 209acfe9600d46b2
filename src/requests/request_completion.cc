#include "requests/request_completion.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace kvasir {

void RequestCompletion::end_if_done(Request& request) {
  const bool may_run =
      request.is(RequestState::kWaiting) || request.is(RequestState::kFetching) || request.is(RequestState::kRunning);
  // A swapped request had something to run when it left.
  if (may_run && !request.task().prepare()) end(request);
}

void RequestCompletion::end(Request& request, const Status& why) {
  RequestGroup& group = request.group();
  if (group.is_shadow()) return end_shadow(request, why);
  const std::size_t made = group.requests.size();
  fork_samples(group, parts_.admissions->most().ahead);
  end_one(request, why);
  for (std::size_t sample = made; sample < group.requests.size(); ++sample) end_one(*group.requests[sample], why);
}

void RequestCompletion::reject(Request& request, Decision decision) {
  if (decision != Decision::kReject && decision != Decision::kOverCeiling) return;
  // Pages on their way to the swap file will be free soon, and swapped tasks still hold some bytes that can be freed.
  if (decision == Decision::kReject && (parts_.preemption->swapping() || parts_.preemption->give_up_one_swapped() ||
                                        parts_.shadows->give_up_one(request)))
    return;
  const std::uint64_t bytes = parts_.runner->plan(Turn{&request.task()}).bytes;
  Status why = kv_memory_full(parts_.runner->cache()->budget(), bytes);
  if (decision == Decision::kOverCeiling) {
    const auto tenant = static_cast<std::size_t>(parts_.admissions->index_of(request.group().tenant));
    why = exhausted("the request holds {} bytes of KV memory and needs {} more, but its tenant may hold {} in all",
                    parts_.memory->used(request), bytes, parts_.admissions->quotas()[tenant].ceiling);
  }
  ++(decision == Decision::kReject ? parts_.counters->rejected : parts_.counters->over_ceiling);
  request.task().finish(FinishReason::kKvMemory);
  end(request, why);
}

void RequestCompletion::remove_ended() {
  parts_.events->note_removed(parts_.requests->remove_ended());
}

// Ends a shadow. If it has not measured what it should, the request that it checks cannot keep its promise, and ends
// too.
void RequestCompletion::end_shadow(Request& shadow, const Status& why) {
  Request& checked = *shadow.group().checked;
  const Status status = shadow.task().status();
  const bool measured = parts_.shadows->finish(shadow);
  if (shadow.is(RequestState::kSwappingIn)) shadow.cancel_swap_in();
  static_cast<void>(shadow.end());
  if (measured) return;
  if (status.ok()) {
    checked.task().finish(FinishReason::kKvMemory);
  } else {
    checked.task().fail(status);
  }
  end(checked, why);
}

void RequestCompletion::end_one(Request& request, const Status& why) {
  parts_.shadows->drop(request);
  if (const Drafting* drafting = request.task().generation().drafting(); drafting != nullptr) {
    parts_.counters->drafted_tokens += drafting->drafted();
    parts_.counters->drafts_come_true += drafting->came_true();
  }
  if (request.is(RequestState::kSwappingIn)) request.cancel_swap_in();  // half of its pages have no content
  if (request.group().inspect) views_.add(sample_info(request));
  if (request.task().status().ok()) {
    finish(request, why);
  } else {
    fail(request);
  }
}

void RequestCompletion::fail(Request& request) {
  // The request may have put pages with the same damage into the cache, unless only its own file was damaged.
  const bool own_file = request.holds_pages() && !request.sequence()->offloaded().status().ok();
  if (request.task().status().code() == StatusCode::kDataLoss && !own_file) parts_.prefixes->discard(request);
  parts_.events->add_failed(request);
  request.end();
}

void RequestCompletion::finish(Request& request, const Status& why) {
  RequestGroup& group = request.group();
  const Task& task = request.task();
  const bool mid_character = task.generation().mid_character();
  const KvReport kv = parts_.memory->report(request);
  parts_.counters->evicted_tokens += std::max<std::int64_t>(kv.seen - kv.kept, 0);
  parts_.events->add_finished(request, why, kv, parts_.prefixes->miss_name(group));
  TextState text = request.end();
  if (group.session.base == nullptr) return parts_.prefixes->publish_last(request, std::move(text.sequence));
  // A cancelled request leaves the session unchanged. Otherwise chance would decide, since only a request that holds
  // pages can hand them over.
  const bool cancelled = *task.generation().finish_reason() == FinishReason::kCancelled;
  if (!group.has_read_prompt() || task.left() > 0 || cancelled || text.sequence == nullptr) return;
  text.sequence->give_up_part();
  group.session.base->end(std::move(text), task.generation(), mid_character);
  if (group.session.released) parts_.sessions->add(group);
}

}  // namespace kvasir
