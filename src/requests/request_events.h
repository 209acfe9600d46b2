// The events of requests that were not returned to their callers yet.
// Thread-safety: as RequestQueue.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvasir/request.h"
#include "requests/request.h"

namespace kvasir {

class RequestEvents {
 public:
  // Returns the events since the last call, in order.
  std::vector<Event> take();
  // Returns the number of groups whose last event take() will return.
  std::int64_t untold() const { return untold_; }
  void note_removed(std::int64_t groups) { untold_ += groups; }

  // Reports how much of the prompt was read.
  void add_prompt(const Request& request);
  // Reports the text that became complete since the last event, if any.
  void add_text(Request& request);
  // Reports that a request has failed with its task's status, as its last event.
  void add_failed(const Request& request);
  // Reports that a request has finished, with the held-back text, as its last event. `why`: if it ends for lack of
  // memory. `kv`: of what it held. `cache_miss`: see GenerateResult.
  void add_finished(Request& request, const Status& why, const KvReport& kv, std::string_view cache_miss);

 private:
  std::vector<Event> events_;
  std::int64_t untold_ = 0;
};

}  // namespace kvasir
