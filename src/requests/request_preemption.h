// Preempts requests, and brings swapped ones back.
//
// A preempted request is recomputed from its tokens, or its pages go to the swap file and back, whichever is faster by
// the measured rates. A failed swap falls back to recomputing.
//
//   preempt()      kRunning      to kSwappingOut, or to kWaiting: it is recomputed
//                  kSwappingIn   to kSwapped: it goes back
//   swap_in()      kSwapped      to kSwappingIn
//   advance()      kSwappingOut  to kSwapped, kSwappingIn to kRunning; where the file fails to kWaiting
//   give_up_swap() kSwappingOut, kSwapped, kSwappingIn  to kWaiting
//
// Thread-safety: as RequestQueue.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "requests/request_counters.h"
#include "requests/request_group.h"
#include "requests/request_memory.h"
#include "requests/request_prefixes.h"
#include "requests/swap.h"
#include "scheduler/admission.h"
#include "tiers/spill_file.h"

namespace kvasir {

class RequestPreemption {
 public:
  // The pointed-to objects outlive this. Requests in the list end before this does: their swaps use the file.
  RequestPreemption(std::shared_ptr<BatchRunner> runner, const RequestList* requests, RequestPrefixes* prefixes,
                    const RequestMemory* memory, const Admissions* admissions, RequestCounters* counters);

  // See RequestQueue::swap_to.
  void swap_to(std::unique_ptr<SpillFile> file, bool always);

  // Returns what it costs to preempt a request that holds pages.
  PreemptionCost cost(Request& request) const;
  // Makes a request give up its pages.
  void preempt(Request& request);

  // Begins to bring a request back from the swap file. Errors: kResourceExhausted.
  Status swap_in(Request& request);
  // Advances all swaps as far as the file's buffers allow. Call it between two passes.
  void advance();
  // Waits until the file has made progress, at most so long.
  void wait(std::chrono::milliseconds most);
  // Makes a swapped request be recomputed.
  void give_up_swap(Request& request, std::string why);
  // Makes one request in the swap file be recomputed, to free what it keeps in memory: of the least urgent, the one
  // that ran the fewest tokens. Returns false if there is none.
  bool give_up_one_swapped();

  // Returns whether pages are on their way to the file or back.
  bool swapping() const;
  // Returns the bytes that will be free once all requests being swapped out have left.
  std::uint64_t leaving_bytes() const;
  // Returns whether cached prefixes must give way to a request that starts: not if that would not suffice, nor if it
  // only has to wait for memory that is on its way out.
  bool may_evict_for(const Request& request) const;
  SwapReport report() const;

 private:
  class PauseTimer;

  bool begin_swap_out(Request& request);
  void advance(Request& request);
  void recompute(Request& request);
  bool can_swap(Request& request) const;

  std::shared_ptr<BatchRunner> runner_;
  const RequestList* requests_;
  RequestPrefixes* prefixes_;
  const RequestMemory* memory_;
  const Admissions* admissions_;
  RequestCounters* counters_;
  std::unique_ptr<SpillFile> file_;  // null: nothing is swapped
  SwapRates rates_;
  double pause_ = 0;     // seconds that swapping has taken since the last pass
  bool always_ = false;  // for tests: swaps whenever possible
};

}  // namespace kvasir
