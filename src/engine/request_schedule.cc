// What the scheduler is told of the requests, and what becomes of its decisions.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/status.h"
#include "engine/kv_report.h"
#include "engine/memory_plan.h"
#include "engine/request_members.h"
#include "engine/request_queue.h"
#include "engine/session_need.h"

namespace kvasir {
namespace {

// Requests that may ask the prefix cache before a pass: how many start in one is far less.
constexpr int kMostLookups = 64;

}  // namespace

// Bytes that all tokens of the member take, and some more: see ScheduleLimits::ahead.
std::uint64_t RequestQueue::bytes_to_start(const Member& member) const {
  const auto plan = [&](std::int64_t before) {
    MemoryRequest request;
    request.tokens = std::min(before + member.task->known_tokens() + admissions_.most().ahead, kMostPlannedTokens);
    request.prompt = std::min(before + member.task->prompt_tokens(), kMostPlannedTokens);
    request.chunk = member.text.chunk;
    return plan_kv_memory(driver_->cache()->shape(), *member.request->policy, request).bytes;
  };
  return member.request->base != nullptr ? bytes_behind(*member.request->base, plan) : plan(0);
}

void RequestQueue::note_leaving(const Request& request) {
  leaving_.push_back({request.base->life(), request.base, request.tenant});
}

// Adds the sessions that leave. REQUIRES: some task.
void RequestQueue::add_leaving(std::vector<ScheduleTask>& tasks) const {
  for (const Leaving& each : leaving_) {
    ScheduleTask task;
    task.holds = task.spared = task.leaves = true;
    task.priority = tasks.back().priority;
    task.tenant = admissions_.index_of(each.tenant);
    task.used = task.estimate = each.session->held().sequence->bytes();
    tasks.push_back(task);
  }
}

// Bytes of the peaks of a member and of the samples that will fork it.
std::uint64_t RequestQueue::estimate(const Member& member) const {
  const Request& request = *member.request;
  if (member.sample > 0 || std::ssize(request.members) == request.samples) {
    // Samples share what they never write again.
    const std::uint64_t shared = request.samples > 1 ? request.shared : 0;
    return request.peak - shared + shared / static_cast<std::uint64_t>(request.samples);
  }
  std::uint64_t all = 0;
  const auto others = static_cast<std::uint64_t>(request.samples - 1);
  const bool huge = __builtin_mul_overflow(request.peak - request.shared, others, &all) ||
                    __builtin_add_overflow(all, request.peak, &all);
  return huge ? ~std::uint64_t{0} : all;
}

// Bytes that a member holds; pages that several samples share are divided among these. Those that it shares with a
// session do not count: they do not come back with it.
std::uint64_t RequestQueue::used(const Member& member) const {
  const Sequence& sequence = *member.text.sequence;
  const std::uint64_t all = sequence.bytes();
  const SessionBase* base = member.request->base;
  if (member.request->samples == 1 && (base == nullptr || base->stored())) return all;
  std::uint64_t own = 0;
  for (int t = 0; t < sequence.tables().tables(); ++t) own += sequence.tables().table(t).own_pages();
  const std::uint64_t alone =
      own * sequence.cache()->pool().page_cost() + sequence.tables().table_bytes() + sequence.state_bytes();
  if (base != nullptr) return alone;
  const auto sharing = std::ranges::count_if(
      member.request->members, [](const std::unique_ptr<Member>& other) { return other->text.sequence != nullptr; });
  return alone + (all - std::min(alone, all)) / static_cast<std::uint64_t>(sharing);
}

// Returns the tokens that a member without a sequence would not have to run.
std::int64_t RequestQueue::tokens_found(Member& member) const {
  if (prefixes_ == nullptr) return 0;
  if (const std::uint64_t version = prefixes_->cache().version(); member.found_version != version) {
    member.found = prefixes_->find(member.request->prefix, text_of(member));
    member.found_version = version;
  }
  return member.found;
}

// Whether a member before this one, which runs no later, is reading what this one could take from the cache then.
bool RequestQueue::waits_for_prefix(const Member& member, std::span<Member* const> before) const {
  if (prefixes_ == nullptr) return false;
  return std::ranges::any_of(before, [&](const Member* other) {
    const bool first = other->text.sequence != nullptr || (other->request->tenant == member.request->tenant &&
                                                           other->request->priority <= member.request->priority);
    return first && other->task->reads() && other->task->prompt_done() < other->task->prompt_tokens() &&
           prefixes_->will_find(member.request->prefix, text_of(member), other->request->prefix, text_of(*other)) >
               std::max(member.found, other->task->prompt_done());
  });
}

// Bytes that sequences may have: what is free, and what the prefix cache can give back.
std::uint64_t RequestQueue::available() const {
  return driver_->cache()->budget().available() + (prefixes_ ? prefixes_->cache().evictable_bytes() : 0);
}

std::vector<ScheduleTask> RequestQueue::tasks_of(std::span<Member* const> all, int prompt_rows) const {
  std::vector<ScheduleTask> tasks;
  std::int64_t asked = 0;                                         // rows of prompts
  std::int64_t least = std::numeric_limits<std::int64_t>::max();  // left of a prompt
  int lookups = 0;
  for (Member* member : all) {
    const Request& request = *member->request;
    ScheduleTask task;
    task.holds = member->text.sequence != nullptr;
    task.reads = member->task->reads();
    task.rows = 1;
    if (task.reads) {
      std::int64_t left = member->task->left();
      // The others get no row whatever the cache holds for them.
      if (!task.holds && (asked < prompt_rows || left < least) && lookups < kMostLookups) {
        ++lookups;
        left -= tokens_found(*member);
        if (waits_for_prefix(*member, all.first(tasks.size()))) left = 0;
      }
      if (left > 0) least = std::min(least, left);
      task.left = left;
      const std::int64_t chunk = prompt_chunk(*request.policy, member->text.chunk);
      task.rows = static_cast<int>(std::min<std::int64_t>({left, chunk, prompt_rows}));
      asked += task.rows;
    }
    task.bytes = member->bytes_to_start;
    if (task.holds) {
      task.bytes = driver_->plan(Turn{&*member->task, task.rows}).bytes;
      task.used = used(*member);
      task.due = task.bytes;
      if (member->task->left() > 0 && member->bytes_to_start > task.used)
        task.due = std::max(task.bytes, member->bytes_to_start - task.used);
    }
    task.spared = member->spared;
    task.priority = request.priority;
    task.tenant = admissions_.index_of(request.tenant);
    task.estimate = estimate(*member);
    tasks.push_back(task);
  }
  return tasks;
}

std::vector<Verdict> RequestQueue::decide(std::span<Member* const> all) const {
  int generating = 0;
  for (const Member* member : all)
    if (member->text.sequence != nullptr && !member->task->reads()) ++generating;
  const ScheduleLimits limits = admissions_.limits(generating);
  std::vector<ScheduleTask> tasks = tasks_of(all, limits.prompt_rows);
  const ScheduleMemory memory{driver_->cache()->budget().capacity(), available()};
  // Pages are only counted, and costs only compared, where some may have to be given up.
  double wanted = static_cast<double>(memory.capacity) * (1 - limits.preempt_mark);
  std::ptrdiff_t holding = 0;
  bool ranks_differ = !admissions_.quotas().empty() || !tasks.front().holds;
  for (const ScheduleTask& task : tasks) {
    wanted += task.holds ? static_cast<double>(task.due) : 0;
    holding += task.holds ? 1 : 0;
    ranks_differ = ranks_differ || task.priority != tasks.front().priority;
  }
  const bool waits = holding < std::ssize(tasks);
  if (wanted > static_cast<double>(memory.available) || (waits && ranks_differ)) {
    const PageOwner beside = prefixes_ ? prefixes_->cache().owner() : PageOwner::kNobody;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!tasks[i].holds) continue;
      const Task& task = *all[i]->task;
      tasks[i].held = bytes_freed_without(*all[i]->text.sequence, beside);
      RecomputeWork work{task.prompt_done(), task.known_tokens() - task.prompt_tokens()};
      work.by_range = !all[i]->request->policy->traits().compacts;
      if (prefixes_ != nullptr) work.cached = prefixes_->find(all[i]->request->prefix, text_of(*all[i]));
      tasks[i].cost = admissions_.cost(work);
    }
  }
  add_leaving(tasks);
  return schedule(tasks, admissions_.quotas(), memory, limits);
}

void RequestQueue::preempt(Member& member) {
  ++counters_.preempted;
  ++member.preemptions;
  counters_.preempted_twice += member.spared ? 1 : 0;
  member.spared = true;
  member.run = 0;
  member.released = report_of(member);
  member.task->release();
  member.bytes_to_start = bytes_to_start(member);
}

// Ends a member that can never go on; does nothing after another decision.
void RequestQueue::reject(Member& member, Decision decision) {
  if (decision != Decision::kReject && decision != Decision::kOverCeiling) return;
  const std::uint64_t bytes = driver_->plan(Turn{&*member.task}).bytes;
  Status why = kv_memory_full(driver_->cache()->budget(), bytes);
  if (decision == Decision::kOverCeiling) {
    const auto tenant = static_cast<std::size_t>(admissions_.index_of(member.request->tenant));
    why = exhausted("the request holds {} bytes of KV memory and needs {} more, but its tenant may hold {} in all",
                    used(member), bytes, admissions_.quotas()[tenant].ceiling);
  }
  ++(decision == Decision::kReject ? counters_.rejected : counters_.over_ceiling);
  member.task->finish(FinishReason::kKvMemory);
  end(member, why);
}

std::int64_t RequestQueue::running() const {
  return std::ranges::count_if(requests_, [](const std::unique_ptr<Request>& request) {
    return std::ranges::any_of(request->members, [](const auto& member) { return member->text.sequence != nullptr; });
  });
}

}  // namespace kvasir
