// Asks the scheduler (scheduler/schedule.h) which requests run, and describes them to it in plain numbers.
// Thread-safety: as RequestQueue.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "requests/leaving_sessions.h"
#include "requests/request_group.h"
#include "requests/request_memory.h"
#include "requests/request_preemption.h"
#include "requests/request_prefixes.h"
#include "scheduler/admission.h"
#include "scheduler/schedule.h"

namespace kvasir {

class RequestScheduler {
 public:
  // The pointed-to objects outlive this.
  RequestScheduler(RequestPrefixes* prefixes, const RequestMemory* memory, const RequestPreemption* preemption,
                   const LeavingSessions* sessions, const Admissions* admissions);

  // Decides for each request; evicts prefixes before a running request gives way to the prefix cache. `all`: those that
  // may take part in a pass or wait for one, in order. REQUIRES: `all` is not empty.
  std::vector<Verdict> decide(std::span<Request* const> all);

 private:
  std::vector<Verdict> decide_once(std::span<Request* const> all, bool without_prefixes = false) const;
  std::vector<ScheduleTask> tasks_of(std::span<Request* const> all, int prompt_rows) const;
  ScheduleTask task_of(Request& request) const;
  void deduct_shared_prefix(Request& request, std::span<Request* const> all, ScheduleTask* task) const;

  RequestPrefixes* prefixes_;
  const RequestMemory* memory_;
  const RequestPreemption* preemption_;
  const LeavingSessions* sessions_;
  const Admissions* admissions_;
};

}  // namespace kvasir
