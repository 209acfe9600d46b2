// Shadows of a queue: requests that read the tokens of a held request under `full`, to measure what its policy costs.
// Thread-safety: as RequestQueue.
#pragma once

#include <cstdint>
#include <memory>

#include "requests/request_counters.h"
#include "requests/request_group.h"
#include "requests/request_memory.h"
#include "scheduler/admission.h"
#include "scheduler/batch_runner.h"

namespace kvasir {

class RequestShadows {
 public:
  // The pointed-to objects outlive this.
  RequestShadows(std::shared_ptr<BatchRunner> runner, RequestList* requests, const RequestMemory* memory,
                 const Admissions* admissions, RequestCounters* counters);

  // Holds each request whose check is due, and adds its shadow before it.
  void begin_due();
  // Takes what a shadow has measured. If that changes the budget, the checked request gives up its pages, and reads its
  // tokens again under the policy's new budget. Returns false, and only lets go of the request, if the shadow has not
  // measured all. The caller ends the shadow.
  bool finish(Request& shadow);
  // Ends the shadow of a request, if it has one.
  void drop(Request& checked);
  // Frees the captured rows of one request that waits for its shadow, and holds no pages: it captures them again later.
  // Of the least urgent, but not of `request` or the one that it checks. Returns false if there is none.
  bool give_up_one(const Request& request);

 private:
  std::unique_ptr<RequestGroup> make_shadow(Request& checked);
  void read_again(Request& checked);

  std::shared_ptr<BatchRunner> runner_;
  RequestList* requests_;
  const RequestMemory* memory_;
  const Admissions* admissions_;
  RequestCounters* counters_;
  std::uint64_t made_ = 0;
};

}  // namespace kvasir
