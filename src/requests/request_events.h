// The events of requests that their callers have not been told of yet.
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
  // Returns the events since the last call, in their order.
  std::vector<Event> take();
  // Groups of which the last event is among those that take() will return.
  std::int64_t untold() const { return untold_; }
  void note_removed(std::int64_t groups) { untold_ += groups; }

  // Says how much of the prompt was read.
  void add_prompt(const Request& request);
  // Says which text became complete since the last event, if any did.
  void add_text(Request& request);
  // Says that a request has failed with the status of its task. The last event of the request.
  void add_failed(const Request& request);
  // Says that a request has finished, with the text that was held back before. The last event of the request. `why`: of
  // one that ends for want of memory. `kv`: of what it held. `cache_miss`: see GenerateResult.
  void add_finished(Request& request, const Status& why, const KvReport& kv, std::string_view cache_miss);

 private:
  std::vector<Event> events_;
  std::int64_t untold_ = 0;
};

}  // namespace kvasir
