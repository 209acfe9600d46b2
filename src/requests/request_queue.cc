#include "requests/request_queue.h"

#include <map>
#include <utility>

#include "base/guarded.h"
#include "base/status.h"

namespace kvasir {

RequestQueue::RequestQueue(std::shared_ptr<BatchRunner> runner, const ScheduleLimits& limits, double max_itl)
    : runner_(std::move(runner)),
      admissions_(limits, max_itl),
      prefixes_(runner_, &counters_),
      memory_(runner_, &prefixes_),
      preemption_(runner_, &requests_, &prefixes_, &memory_, &admissions_, &counters_),
      shadows_(runner_, &requests_, &memory_, &admissions_, &counters_),
      completion_(parts()),
      passes_(parts(), &completion_) {}

RequestQueue::~RequestQueue() {
  requests_.clear();  // before the swap file
}

RequestParts RequestQueue::parts() {
  return {runner_,  &admissions_, &requests_, &events_,  &prefixes_,
          &memory_, &preemption_, &sessions_, &shadows_, &counters_};
}

void RequestQueue::store_prefixes(std::vector<std::unique_ptr<BlobStore>> stores, PrefixTiers::Warn warn) {
  prefixes_.store_in(std::move(stores), std::move(warn));
}

RequestId RequestQueue::add(const RequestOptions& options, RequestText text, std::unique_ptr<RetentionPolicy> policy,
                            std::optional<int> chunk, std::optional<KvCodec> codec) {
  const RequestId id{next_id_};
  requests_.add(make_group(id, options, std::move(text), std::move(policy), chunk, codec, *runner_, admissions_));
  ++next_id_;
  return id;
}

Result<std::vector<Event>> RequestQueue::poll() {
  KVASIR_RETURN_IF_ERROR(guarded([&] {
    passes_.advance();
    return Status();
  }));
  return events_.take();
}

Status RequestQueue::cancel(RequestId id) {
  const RequestGroup* group = requests_.find(id);
  if (group == nullptr)
    return make_status(StatusCode::kNotFound, "no request {} is waiting or running", static_cast<std::uint64_t>(id));
  return guarded([&] {
    for (Request* request : requests_.active()) {
      if (&request->group() != group || request->is(RequestState::kEnded)) continue;
      request->task().finish(FinishReason::kCancelled);
      completion_.end(*request);
    }
    completion_.remove_ended();
    return Status();
  });
}

std::vector<TenantReport> RequestQueue::tenants() const {
  std::map<int, TenantReport> found;
  for (const Request* request : requests_.active()) {
    if (!request->holds_pages()) continue;
    const int tenant = request->group().tenant;
    TenantReport& report = found.try_emplace(tenant, TenantReport{tenant}).first->second;
    report.bytes += memory_.used(*request);
    if (__builtin_add_overflow(report.planned, memory_.estimate(*request), &report.planned))
      report.planned = ~std::uint64_t{0};
  }
  std::vector<TenantReport> reports;
  for (const auto& [tenant, report] : found) reports.push_back(report);
  return reports;
}

void RequestQueue::each_sample(const std::function<void(const SampleInfo&)>& visit) const {
  for (const Request* request : requests_.active())
    if (!request->group().is_shadow()) visit(sample_info(*request));
}

void RequestQueue::settle_tiers(std::chrono::milliseconds most) {
  prefixes_.tiers().wait(most);
  prefixes_.tiers().advance();
}

const Request* RequestQueue::find(RequestId id, int sample) const {
  const RequestGroup* group = requests_.find(id);
  if (group == nullptr || sample >= static_cast<int>(group->requests.size())) return nullptr;
  return group->requests[static_cast<std::size_t>(sample)].get();
}

const Sequence* RequestQueue::sequence_of(RequestId id, int sample) const {
  const Request* request = find(id, sample);
  return request != nullptr ? request->sequence() : nullptr;
}

}  // namespace kvasir
