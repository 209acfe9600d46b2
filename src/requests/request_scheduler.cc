#include "requests/request_scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "planning/memory_plan.h"

namespace kvasir {
namespace {

// Most requests that query the prefix cache before a pass. Far fewer start in one pass.
constexpr int kMostLookups = 64;

bool gives_way(const Verdict& verdict) {
  return verdict.decision == Decision::kPreempt || verdict.decision == Decision::kReject;
}

}  // namespace

RequestScheduler::RequestScheduler(RequestPrefixes* prefixes, const RequestMemory* memory,
                                   const RequestPreemption* preemption, const LeavingSessions* sessions,
                                   const Admissions* admissions)
    : prefixes_(prefixes), memory_(memory), preemption_(preemption), sessions_(sessions), admissions_(admissions) {}

// Returns what is known of a request without the prefix cache or other requests.
ScheduleTask RequestScheduler::task_of(Request& request) const {
  ScheduleTask task;
  task.holds = request.holds_pages();
  task.reads = request.task().reads();
  task.rows = request.is_held() ? 0 : 1;
  task.bytes = request.bytes.to_start;
  task.estimate = memory_->estimate(request);
  task.spared = request.progress.spared && !request.is_held();
  task.priority = request.group().priority;
  task.tenant = admissions_->index_of(request.group().tenant);
  return task;
}

// Deducts the pages that another request already holds, with which a starting request is not charged.
void RequestScheduler::deduct_shared_prefix(Request& request, std::span<Request* const> all, ScheduleTask* task) const {
  if (!task->holds) {
    request.bytes.shared_prefix = memory_->shared_prefix(request, all);
    task->bytes -= std::min(task->bytes, request.bytes.shared_prefix);
  }
  task->estimate -= std::min(task->estimate, request.bytes.shared_prefix);
}

std::vector<ScheduleTask> RequestScheduler::tasks_of(std::span<Request* const> all, int prompt_rows) const {
  std::vector<ScheduleTask> tasks;
  std::int64_t asked = 0;                                         // prompt rows asked for
  std::int64_t least = std::numeric_limits<std::int64_t>::max();  // rows left of a prompt
  int lookups = 0;
  for (Request* request : all) {
    ScheduleTask task = task_of(*request);
    if (task.reads) {
      std::int64_t left = request->task().left() + request->task().left_to_repeat();
      // Queries the cache only for requests that may get a row: the first that fill the pass, the one with the least
      // left, and small ones, which may pass others.
      const bool may_pass = is_small(task, memory_->capacity(), admissions_->most());
      if (request->is(RequestState::kWaiting) && (asked < prompt_rows || left < least || may_pass) &&
          lookups < kMostLookups) {
        ++lookups;
        left -= prefixes_->find(*request);
        if (prefixes_->waits_for_prompt(*request, all.first(tasks.size()))) left = 0;
      }
      if (left > 0) least = std::min(least, left);
      task.left = left;
      const std::int64_t chunk = prompt_chunk(*request->group().policy, request->task().chunk());
      task.rows = static_cast<int>(std::min<std::int64_t>({left, chunk, prompt_rows}));
      asked += task.rows;
    }
    if (task.holds) {
      task.bytes = request->is_held() ? 0 : memory_->next_rows(*request, task.rows);
      task.used = memory_->used(*request);
      task.due = task.bytes;
      if (request->task().left() > 0 && request->bytes.to_start > task.used)
        task.due = std::max(task.bytes, request->bytes.to_start - task.used);
    }
    if (admissions_->most().admission == Admission::kUse) deduct_shared_prefix(*request, all, &task);
    tasks.push_back(task);
  }
  if (prefixes_->enabled() && !admissions_->quotas().empty()) RequestMemory::divide_shared(all, tasks);
  return tasks;
}

// Decides from numbers that do not depend on the length of texts. Computes what a preemption frees and costs only if
// one is due. `without_prefixes`: as if the prefix cache were empty.
std::vector<Verdict> RequestScheduler::decide_once(std::span<Request* const> all, bool without_prefixes) const {
  const auto generating = std::ranges::count_if(all, [](const Request* request) {
    return request->holds_pages() && !request->task().reads() && !request->is_held();
  });
  const ScheduleLimits limits = admissions_->limits(static_cast<int>(generating));
  std::vector<ScheduleTask> tasks = tasks_of(all, limits.prompt_rows);
  // Pages leaving for the swap file count as free, or others would be preempted in their place.
  ScheduleMemory memory{memory_->capacity(), memory_->available() + preemption_->leaving_bytes()};
  if (without_prefixes) memory.available += prefixes_->charged_bytes();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!tasks[i].holds) continue;
    tasks[i].held = all[i]->sequence()->bytes();
    if (!without_prefixes) continue;
    const std::uint64_t copies = std::min(memory_->copies_for_prefixes(*all[i], tasks[i].rows), tasks[i].bytes);
    tasks[i].bytes -= copies;
    tasks[i].due -= std::min(copies, tasks[i].due);
  }
  sessions_->add_to(tasks, *admissions_);
  std::vector<Verdict> verdicts = schedule(tasks, admissions_->quotas(), memory, limits);
  // This assumed that a preemption frees all bytes of a request. If it preempts none even so, the true bytes do not
  // matter.
  if (std::ranges::none_of(verdicts, [](const Verdict& v) { return v.decision == Decision::kPreempt; }))
    return verdicts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!tasks[i].holds) continue;
    tasks[i].held = memory_->freed_by_preemption(*all[i]);
    tasks[i].cost = preemption_->cost(*all[i]).least();
  }
  return schedule(tasks, admissions_->quotas(), memory, limits);
}

// Pages that eviction would free already count as available. So eviction changes a decision only if tasks no longer
// need to copy pages shared with a cached prefix, or if the bytes of the cache's own structures are missing. Otherwise
// nothing is evicted: a task preempted for a place, or for its tenant's ceiling, costs no prefix.
std::vector<Verdict> RequestScheduler::decide(std::span<Request* const> all) {
  std::vector<Verdict> verdicts = decide_once(all);
  const auto alike = [](const Verdict& a, const Verdict& b) {
    return gives_way(a) == gives_way(b) && (!gives_way(a) || a.decision == b.decision);
  };
  for (int batch = 1; prefixes_->enabled() && !prefixes_->cache()->empty(); batch *= 2) {
    if (std::ranges::none_of(verdicts, gives_way)) break;
    if (std::ranges::equal(decide_once(all, true), verdicts, alike)) break;
    for (int i = 0; i < batch && !prefixes_->cache()->empty(); ++i)
      if (!prefixes_->evict_one()) prefixes_->cache()->clear();
    verdicts = decide_once(all);
  }
  return verdicts;
}

}  // namespace kvasir
