// The parts of a RequestQueue, for those parts that use most of the others. All parts outlive these pointers.
#pragma once

#include <memory>

#include "requests/leaving_sessions.h"
#include "requests/request_counters.h"
#include "requests/request_events.h"
#include "requests/request_group.h"
#include "requests/request_memory.h"
#include "requests/request_preemption.h"
#include "requests/request_prefixes.h"
#include "requests/shadow/request_shadows.h"
#include "scheduler/admission.h"
#include "scheduler/batch_runner.h"

namespace kvasir {

struct RequestParts {
  std::shared_ptr<BatchRunner> runner;
  Admissions* admissions;
  RequestList* requests;
  RequestEvents* events;
  RequestPrefixes* prefixes;
  const RequestMemory* memory;
  RequestPreemption* preemption;
  LeavingSessions* sessions;
  RequestShadows* shadows;
  RequestCounters* counters;
};

}  // namespace kvasir
