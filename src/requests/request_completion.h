// Ends requests: sends their last events, and releases or keeps what they held.
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
  // Ends a request whose task has finished or failed. If its prompt was not read to the end, ends the samples still to
  // be forked in the same way. `why`: see RequestEvents::add_finished.
  void end(Request& request, const Status& why = {});
  // Ends a request that can never go on: on kReject and kOverCeiling only.
  void reject(Request& request, Decision decision);
  // Removes the groups whose samples have all ended.
  void remove_ended();

  const EndedViews& views() const { return views_; }

 private:
  void end_one(Request& request, const Status& why);
  void end_shadow(Request& shadow, const Status& why);
  void fail(Request& request);
  void finish(Request& request, const Status& why);

  RequestParts parts_;
  EndedViews views_;
};

}  // namespace kvasir
