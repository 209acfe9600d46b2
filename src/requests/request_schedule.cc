// What the scheduler is told of the requests, and what becomes of its decisions.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/status.h"
#include "planning/memory_plan.h"
#include "requests/request_members.h"
#include "requests/request_queue.h"
#include "sequence/kv_report.h"
#include "session/session_need.h"

namespace kvasir {
namespace {

// Requests that may ask the prefix cache before a pass: how many start in one is far less.
constexpr int kMostLookups = 64;

// Requests whose prompts were compared with one request's, and whose common beginnings are remembered.
constexpr std::size_t kMostRemembered = 256;

// Bytes of the pages that hold as many tokens in all lanes.
std::uint64_t bytes_of_sealed(const KvCacheShape& shape, std::int64_t columns) {
  return static_cast<std::uint64_t>(columns * shape.lanes()) * (shape.page.bytes() + PagePool::kPageOverhead);
}

// Returns how many of the first columns of two texts of which nothing was dropped are the same pages.
std::int64_t common_columns(const Sequence& a, const Sequence& b) {
  const auto same = [&](std::int64_t column) {
    return a.tables().table(0).pages_of_whole(column).front() == b.tables().table(0).pages_of_whole(column).front();
  };
  std::int64_t common = 0;
  std::int64_t most = std::min(a.tables().whole_columns(), b.tables().whole_columns());
  if (most == 0 || !same(0)) return 0;
  while (common < most) {
    const std::int64_t middle = common + (most - common) / 2;
    if (same(middle)) {
      common = middle + 1;
    } else {
      most = middle;
    }
  }
  return common;
}

// Returns what columns come to if each is divided among this text and those that share so many of its first columns.
std::uint64_t shared_out(const KvCacheShape& shape, std::vector<std::int64_t> sharers) {
  std::ranges::sort(sharers);
  std::uint64_t bytes = 0;
  std::int64_t from = 0;
  for (std::size_t i = 0; i < sharers.size(); ++i) {
    bytes += bytes_of_sealed(shape, sharers[i] - from) / (sharers.size() - i + 1);
    from = sharers[i];
  }
  return bytes;
}

}  // namespace

// Bytes that all tokens of the member take, and some more: see ScheduleLimits::ahead.
std::uint64_t RequestQueue::bytes_to_start(const Member& member) const {
  const auto plan = [&](std::int64_t before) {
    MemoryRequest request;
    request.tokens = std::min(before + member.task->known_tokens() + admissions_.most().ahead, kMostPlannedTokens);
    request.prompt = std::min(before + member.task->prompt_tokens(), kMostPlannedTokens);
    request.chunk = member.text.chunk;
    request.divided = true;
    return plan_kv_memory(member.request->shape, *member.request->policy, request).bytes;
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
  const std::uint64_t alone = sequence.tables().own_page_bytes() + sequence.own_bytes_beside_pages();
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

// Returns how many tokens a member could take from the prefix cache once another's prompt has been read.
std::int64_t RequestQueue::will_find(const Member& member, const Member& other) const {
  const PrefixUse& use = member.request->prefix;
  if (use.bypass || other.request->prefix.bypass || use.salt != other.request->prefix.salt ||
      use.codec != other.request->prefix.codec)
    return 0;
  const auto prompt = [](const Member& of) {
    return of.task->tokens().first(static_cast<std::size_t>(of.task->prompt_tokens()));
  };
  // Prompts do not change, and this is asked before each pass.
  auto& common_with = member.request->common_with;
  auto known = common_with.find(other.request->id);
  if (known == common_with.end()) {
    if (common_with.size() >= kMostRemembered) common_with.clear();
    const auto mine = prompt(member);
    const std::int64_t common = std::ranges::mismatch(mine, prompt(other)).in1 - mine.begin();
    known = common_with.emplace(other.request->id, common).first;
  }
  std::int64_t common = known->second;
  // What a member has generated may be part of another's prompt.
  if (common == member.task->prompt_tokens()) {
    const auto mine = member.task->tokens().subspan(static_cast<std::size_t>(common));
    const auto theirs = prompt(other).subspan(static_cast<std::size_t>(common));
    common += std::ranges::mismatch(mine, theirs).in1 - mine.begin();
  }
  return prefixes_->will_find(use, text_of(member), other.request->prefix, text_of(other), common);
}

// Whether a member before this one is reading what this one could take from the cache then: one that holds pages, or
// one of its tenant that begins before it.
bool RequestQueue::waits_for_prefix(const Member& member, std::span<Member* const> before) const {
  if (prefixes_ == nullptr) return false;
  return std::ranges::any_of(before, [&](const Member* other) {
    // A preempted one goes on before others begin: it would wait for what waits for it.
    const bool begins_first = other->request->tenant == member.request->tenant &&
                              other->request->priority <= member.request->priority && (!member.spared || other->spared);
    const bool first = other->text.sequence != nullptr || begins_first;
    return first && other->task->reads() && other->task->prompt_done() < other->task->prompt_tokens() &&
           will_find(member, *other) > std::max(member.found, other->task->prompt_done());
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
  const std::uint64_t capacity = driver_->cache()->budget().capacity();
  for (Member* member : all) {
    const Request& request = *member->request;
    ScheduleTask task;
    task.holds = member->text.sequence != nullptr;
    task.reads = member->task->reads();
    task.rows = 1;
    task.bytes = member->bytes_to_start;
    task.estimate = estimate(*member);
    if (task.reads) {
      std::int64_t left = member->task->left();
      // The others get no row whatever the cache holds for them: they neither come first nor pass those that do.
      const bool may_pass = is_small(task, capacity, admissions_.most());
      if (!task.holds && member->swap == nullptr && (asked < prompt_rows || left < least || may_pass) &&
          lookups < kMostLookups) {
        ++lookups;
        left -= tokens_found(*member);
        if (waits_for_prefix(*member, all.first(tasks.size()))) left = 0;
      }
      if (left > 0) least = std::min(least, left);
      task.left = left;
      const std::int64_t chunk = prompt_chunk(*request.policy, member->task->chunk());
      task.rows = static_cast<int>(std::min<std::int64_t>({left, chunk, prompt_rows}));
      asked += task.rows;
    }
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
    if (admissions_.most().admission == Admission::kUse) {
      if (!task.holds) {
        member->bytes_in_use = member->found > 0 ? bytes_in_use(*member, all) : 0;
        task.bytes -= std::min(task.bytes, member->bytes_in_use);
      }
      task.estimate -= std::min(task.estimate, member->bytes_in_use);
    }
    tasks.push_back(task);
  }
  if (prefixes_ != nullptr && !admissions_.quotas().empty()) share_among_requests(all, tasks);
  return tasks;
}

// Bytes of the pages that a member would continue from the prefix cache, if a running one of the same text holds them.
std::uint64_t RequestQueue::bytes_in_use(const Member& member, std::span<Member* const> all) const {
  const KvCacheShape& shape = member.request->shape;
  const std::int64_t columns = member.found / shape.page.slots;
  const bool in_use = std::ranges::any_of(all, [&](const Member* other) {
    return other->text.sequence != nullptr && other->text.sequence->tables().whole_columns() >= columns &&
           will_find(member, *other) >= member.found;
  });
  return in_use ? bytes_of_sealed(shape, columns) : 0;
}

// Divides the pages that several requests of a tenant share among them.
void RequestQueue::share_among_requests(std::span<Member* const> all, std::vector<ScheduleTask>& tasks) const {
  const auto shares = [&](std::size_t i) {
    return tasks[i].holds && tasks[i].tenant >= 0 && all[i]->request->samples == 1;
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!shares(i)) continue;
    std::vector<std::int64_t> sharers;
    for (std::size_t j = 0; j < all.size(); ++j) {
      if (j == i || !shares(j) || tasks[j].tenant != tasks[i].tenant) continue;
      const std::int64_t columns = common_columns(*all[i]->text.sequence, *all[j]->text.sequence);
      if (columns > 0) sharers.push_back(columns);
    }
    if (sharers.empty()) continue;
    const KvCacheShape& shape = all[i]->request->shape;
    const std::uint64_t whole = bytes_of_sealed(shape, std::ranges::max(sharers));
    tasks[i].used -= std::min(tasks[i].used, whole - shared_out(shape, std::move(sharers)));
  }
}

// Decides with numbers that do not depend on the length of texts; what a preemption gives back and costs is counted
// only where one is due. `unshared`: as if the prefix cache held nothing.
std::vector<Verdict> RequestQueue::decide(std::span<Member* const> all, bool unshared) const {
  int generating = 0;
  for (const Member* member : all)
    if (member->text.sequence != nullptr && !member->task->reads()) ++generating;
  const ScheduleLimits limits = admissions_.limits(generating);
  std::vector<ScheduleTask> tasks = tasks_of(all, limits.prompt_rows);
  // What leaves for the swap file counts as gone: otherwise others would be preempted in its place.
  ScheduleMemory memory{driver_->cache()->budget().capacity(), available() + leaving_bytes()};
  if (unshared && prefixes_ != nullptr) memory.available += prefixes_->cache().charged_bytes();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!tasks[i].holds) continue;
    tasks[i].held = all[i]->text.sequence->bytes();
    if (!unshared) continue;
    const std::uint64_t copies = std::min(copies_for_prefixes(*all[i], tasks[i].rows), tasks[i].bytes);
    tasks[i].bytes -= copies;
    tasks[i].due -= std::min(copies, tasks[i].due);
  }
  add_leaving(tasks);
  std::vector<Verdict> verdicts = schedule(tasks, admissions_.quotas(), memory, limits);
  // This assumed that a preemption frees all of a task's bytes. If it then preempts nobody, it does not with fewer.
  if (std::ranges::none_of(verdicts, [](const Verdict& v) { return v.decision == Decision::kPreempt; }))
    return verdicts;
  const PageOwner beside = prefixes_ ? prefixes_->cache().owner() : PageOwner::kNobody;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!tasks[i].holds) continue;
    tasks[i].held = bytes_freed_without(*all[i]->text.sequence, beside);
    tasks[i].cost = cost_of(*all[i]).least();
  }
  return schedule(tasks, admissions_.quotas(), memory, limits);
}

// Bytes that a task's next rows take, at most, for copies of pages that are shared with nothing but the prefix cache.
std::uint64_t RequestQueue::copies_for_prefixes(Member& member, int rows) const {
  std::uint64_t copies = 0;
  for (const Sequence::PassPlan& pass : driver_->plan(Turn{&*member.task, rows}).passes) copies += pass.reserve;
  if (copies == 0 || prefixes_ == nullptr) return 0;
  const Sequence& sequence = *member.text.sequence;
  return std::min(copies, bytes_freed_without(sequence, prefixes_->cache().owner()) - bytes_freed_without(sequence));
}

// Decides so that nothing which runs gives way to the prefix cache. The pages that evicting frees count as available
// already, so evicting changes a decision only where tasks need not copy pages any more that they share with a cached
// prefix, or where what the cache's own structures take is missing. Otherwise nothing is evicted: a task that is
// preempted for a place, or for its tenant's ceiling, costs nobody a prefix.
std::vector<Verdict> RequestQueue::decide_with_prefixes(std::span<Member* const> all) {
  std::vector<Verdict> verdicts = decide(all);
  const auto gives_way = [](const Verdict& verdict) {
    return verdict.decision == Decision::kPreempt || verdict.decision == Decision::kReject;
  };
  const auto alike = [&](const Verdict& a, const Verdict& b) {
    return gives_way(a) == gives_way(b) && (!gives_way(a) || a.decision == b.decision);
  };
  for (int batch = 1; prefixes_ != nullptr && !prefixes_->cache().empty(); batch *= 2) {
    if (std::ranges::none_of(verdicts, gives_way)) break;
    if (std::ranges::equal(decide(all, true), verdicts, alike)) break;
    for (int i = 0; i < batch && !prefixes_->cache().empty(); ++i)
      if (!prefixes_->cache().evict_one()) prefixes_->cache().clear();
    verdicts = decide(all);
  }
  return verdicts;
}

void RequestQueue::preempt(Member& member) {
  ++counters_.preempted;
  ++member.preemptions;
  counters_.preempted_twice += member.spared ? 1 : 0;
  member.spared = true;
  if (member.is_coming()) {
    member.swap->turn_back();
    member.text.sequence.reset();
    return;
  }
  member.released = report_of(member);
  if (begin_swap(member)) return;
  member.swap.reset();
  member.run = 0;
  member.task->release();
  member.bytes_to_start = bytes_to_start(member);
  member.found_version = 0;  // it may have generated more since
}

// Ends a member that can never go on; does nothing after another decision.
void RequestQueue::reject(Member& member, Decision decision) {
  if (decision != Decision::kReject && decision != Decision::kOverCeiling) return;
  // Pages on their way to the swap file come free soon, and swapped tasks still hold some bytes that can be freed.
  if (decision == Decision::kReject && (swapping() || forget_one_swapped())) return;
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

std::vector<TenantReport> RequestQueue::tenants() const {
  std::map<int, TenantReport> found;
  for (const Member* member : members()) {
    if (member->text.sequence == nullptr) continue;
    const int tenant = member->request->tenant;
    TenantReport& report = found.try_emplace(tenant, TenantReport{tenant}).first->second;
    report.bytes += used(*member);
    if (__builtin_add_overflow(report.planned, estimate(*member), &report.planned)) report.planned = ~std::uint64_t{0};
  }
  std::vector<TenantReport> reports;
  for (const auto& [tenant, report] : found) reports.push_back(report);
  return reports;
}

std::int64_t RequestQueue::running() const {
  return std::ranges::count_if(requests_, [](const std::unique_ptr<Request>& request) {
    return std::ranges::any_of(request->members, [](const auto& member) { return member->text.sequence != nullptr; });
  });
}

}  // namespace kvasir
