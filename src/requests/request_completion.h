// The end of requests: their last events, and what becomes of what they held.
// Thread-safety: as RequestQueue.
#pragma once

#include "requests/request_parts.h"
#include "requests/sequence_view.h"
#include "scheduler/schedule.h"

namespace kvasir {

class RequestCompletion {
 public:
  explicit RequestCompletion(const RequestParts& parts) : parts_(parts) {}

  // Ends a request that has nothing left to run.
  void end_if_done(Request& request);
  // Ends a request whose task has finished or failed. If its prompt was not read to the end, the samples that would
  // have been forked from it end in the same way. `why`: see RequestEvents::add_finished.
  void end(Request& request, const Status& why = {});
  // Ends a request that can never go on. Does nothing after another decision than these: kReject, kOverCeiling.
  void reject(Request& request, Decision decision);
  // Removes the groups of which all samples have ended.
  void remove_ended();

  const EndedViews& views() const { return views_; }

 private:
  void end_one(Request& request, const Status& why);
  void fail(Request& request);
  void finish(Request& request, const Status& why);

  RequestParts parts_;
  EndedViews views_;
};

}  // namespace kvasir
