#include "requests/shadow/request_shadows.h"

#include <utility>
#include <vector>

#include "base/check.h"

namespace kvasir {
namespace {

// Numbers of shadows, which no request has.
constexpr std::uint64_t kShadowIds = std::uint64_t{1} << 63;

}  // namespace

RequestShadows::RequestShadows(std::shared_ptr<BatchRunner> runner, RequestList* requests, const RequestMemory* memory,
                               const Admissions* admissions, RequestCounters* counters)
    : runner_(std::move(runner)), requests_(requests), memory_(memory), admissions_(admissions), counters_(counters) {}

void RequestShadows::begin_due() {
  for (Request* request : requests_->active()) {
    if (request->quality == nullptr || !request->is(RequestState::kRunning)) continue;
    if (!request->quality->is_due(request->task())) continue;
    std::unique_ptr<RequestGroup> group = make_shadow(*request);
    request->quality->begin_check(group->requests.front().get());
    requests_->add_before(request->group(), std::move(group));
  }
}

std::unique_ptr<RequestGroup> RequestShadows::make_shadow(Request& checked) {
  const RequestGroup& of = checked.group();
  RequestQuality& quality = *checked.quality;
  auto group = std::make_unique<RequestGroup>();
  group->id = RequestId{kShadowIds + made_++};
  group->checked = &checked;
  group->policy = shadow_policy();
  group->shape = quality.terms().shadow_shape;
  group->priority = of.priority;
  group->tenant = of.tenant;
  group->prefix.use = of.prefix.use;
  // What one shadow has read, the next one continues, if the prefix cache keeps it. It is nobody's to pin.
  group->prefix.use.pinned = false;
  group->prefix.use.codec = group->shape.codec();
  const auto count = static_cast<std::size_t>(quality.meter().tokens_to_read());
  const std::span<const TokenId> tokens = checked.task().tokens().first(count);
  GenerateOptions nothing;
  nothing.max_tokens = 0;
  TextState begin;
  begin.chunk = checked.text().chunk;
  auto shadow = std::make_unique<Request>(group.get(), 0, std::move(begin));
  shadow->set_task({tokens.begin(), tokens.end()}, Generation(*runner_->model()->tokenizer, nothing, {}, {}));
  shadow->task().watch_rows(&quality.full_rows());
  shadow->bytes.to_start = group->peak = bytes_to_start(*shadow, 0);
  group->requests.push_back(std::move(shadow));
  return group;
}

bool RequestShadows::finish(Request& shadow) {
  Request& checked = *shadow.group().checked;
  RequestQuality& quality = *checked.quality;
  KVASIR_CHECK(quality.shadow() == &shadow);
  if (!shadow.task().status().ok() || !quality.meter().compared_all()) {
    quality.abandon_check();
    return false;
  }
  ++counters_->quality_checks;
  const bool changed = quality.end_check(shadow.sequence()->bytes_peak());
  if (changed) {
    read_again(checked);
  } else if (checked.is(RequestState::kWaiting)) {  // its pages went while it was held
    quality.meter().close();
    checked.bytes.to_start = bytes_to_start(checked, admissions_->most().ahead);
  }
  return true;
}

void RequestShadows::read_again(Request& checked) {
  checked.bytes.released = memory_->report(checked);
  checked.group().policy = checked.quality->policy();
  if (checked.is(RequestState::kWaiting)) {
    checked.quality->meter().close();
  } else {
    checked.release();
  }
  checked.bytes.to_start = bytes_to_start(checked, admissions_->most().ahead);
  checked.prefix.found_version = 0;
  checked.progress.most_run = 0;  // what runs now was not run before
  checked.progress.spared = true;
}

void RequestShadows::drop(Request& checked) {
  if (checked.quality == nullptr || !checked.quality->is_checking()) return;
  Request& shadow = *checked.quality->shadow();
  checked.quality->abandon_check();
  if (shadow.is(RequestState::kSwappingIn)) shadow.cancel_swap_in();
  static_cast<void>(shadow.end());
}

bool RequestShadows::give_up_one(const Request& request) {
  Request* found = nullptr;
  for (Request* each : requests_->active()) {
    if (each->quality == nullptr || !each->quality->is_checking() || !each->is(RequestState::kWaiting)) continue;
    const Request* shadow = each->quality->shadow();
    if (each != &request && shadow != &request && !shadow->holds_pages()) found = each;
  }
  if (found == nullptr) return false;
  drop(*found);
  found->quality->meter().close();
  found->bytes.to_start = bytes_to_start(*found, admissions_->most().ahead);
  found->prefix.found_version = 0;
  return true;
}

}  // namespace kvasir
