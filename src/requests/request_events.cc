#include "requests/request_events.h"

#include <algorithm>
#include <utility>

#include "requests/request_group.h"

namespace kvasir {
namespace {

Event event_of(const Request& request, Event::Kind kind) {
  Event event;
  event.request = request.group().id;
  event.sample = request.sample();
  event.kind = kind;
  return event;
}

// Returns the choices not yet reported.
std::vector<GeneratedToken> take_choices(Request& request) {
  const Generation& generation = request.task().generation();
  const std::vector<GeneratedToken>& all = generation.choices();  // perhaps with one that is not accepted yet
  const std::size_t accepted = std::min(all.size(), static_cast<std::size_t>(generation.tokens()));
  const auto first = static_cast<std::ptrdiff_t>(std::exchange(request.progress.told_choices, accepted));
  return {all.begin() + first, all.begin() + static_cast<std::ptrdiff_t>(accepted)};
}

// Returns a request's result, without the report of what it held.
GenerateResult result_of(const Request& request) {
  const Task& task = request.task();
  const RequestGroup& group = request.group();
  const bool read = group.has_read_prompt();
  const auto now = RequestClock::now();
  GenerateResult result = task.generation().result();
  result.prompt_choices = task.prompt_choices();
  result.embedding = task.pooled();
  result.prompt_tokens = task.prompt_tokens();
  result.prompt_seconds = seconds_between(group.submitted, read ? group.read : now);
  result.seconds = read ? seconds_between(group.read, now) : 0;
  result.seed = group.seed + static_cast<std::uint64_t>(request.sample());
  result.preemptions = request.progress.preemptions;
  result.recomputed = request.progress.recomputed;
  result.queue_seconds = seconds_between(group.submitted, group.started.value_or(now));
  if (request.quality != nullptr) result.quality = request.quality->report(result.tokens);
  result.cached = group.prefix.cached;
  result.cached_from = group.prefix.cached_from;
  return result;
}

}  // namespace

std::vector<Event> RequestEvents::take() {
  untold_ = 0;
  return std::exchange(events_, {});
}

void RequestEvents::add_prompt(const Request& request) {
  Event event = event_of(request, Event::Kind::kPrompt);
  event.done = request.task().prompt_done();
  event.total = request.task().prompt_tokens();
  events_.push_back(std::move(event));
}

void RequestEvents::add_text(Request& request) {
  Event event = event_of(request, Event::Kind::kText);
  event.text = request.task().take_text();
  if (event.text.empty()) return;
  event.choices = take_choices(request);
  event.done = request.task().generation().tokens();
  events_.push_back(std::move(event));
}

void RequestEvents::add_failed(const Request& request) {
  Event event = event_of(request, Event::Kind::kFailed);
  event.status = request.task().status();
  events_.push_back(std::move(event));
}

void RequestEvents::add_finished(Request& request, const Status& why, const KvReport& kv, std::string_view cache_miss) {
  for (std::string text = request.task().flush(); !text.empty(); text = request.task().flush()) {
    events_.push_back(event_of(request, Event::Kind::kText));
    events_.back().text = std::move(text);
    events_.back().choices = take_choices(request);
    events_.back().done = request.task().generation().tokens();
  }
  Event event = event_of(request, Event::Kind::kFinished);
  event.status = why;
  event.choices = take_choices(request);
  event.result = result_of(request);
  event.result.kv = kv;
  event.result.cache_miss = cache_miss;
  events_.push_back(std::move(event));
}

}  // namespace kvasir
