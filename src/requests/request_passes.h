// Advances the requests: each round decides who runs, starts and preempts requests, and runs one pass.
// Thread-safety: as RequestQueue.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "requests/request_completion.h"
#include "requests/request_parts.h"
#include "requests/request_scheduler.h"

namespace kvasir {

class RequestPasses {
 public:
  // `completion` outlives this.
  RequestPasses(const RequestParts& parts, RequestCompletion* completion);

  // Runs one pass, if any request has work.
  void advance();
  // Sets how many bytes of sessions are copied from their files between two passes.
  void set_load_bytes(std::uint64_t bytes) { load_bytes_ = bytes; }

 private:
  // The pass that a round builds.
  struct Pass {
    void pop_back();

    // One per turn:
    std::vector<Turn> turns;
    std::vector<Request*> requests;
    std::vector<bool> starts;      // the request starts in this pass
    bool estimated = false;        // some request starts: its bytes are an estimate
    bool loading = false;          // pages of a session were filled
    std::uint64_t load = 0;        // bytes of sessions that may still be filled
    Request* unstarted = nullptr;  // the newest that had no room to start
    Status why_unstarted;
  };

  // The rows of a pass.
  struct Rows {
    bool mixed() const { return prompt > 0 && other > 0; }

    int prompt = 0;
    int other = 0;
    std::int64_t left = 0;  // tokens left to run, these rows included, less rows that repeated a text so far
  };

  bool run_round();
  std::vector<Request*> begin_round();
  bool wait_for_transfers();
  void add_turn(Request& request, int rows, Pass& pass);
  bool begin_fetch(Request& request);
  Status start(Request& request);
  Status open_rows(Request& request);
  Status start_behind_session(Request& request);
  void give_way_to(Request& unstarted, const Status& why);
  void add_drafts(Pass& pass);
  void fit(Pass& pass);
  void drop_what_waits_for_swap(Pass& pass);
  static Rows rows_of(const Pass& pass);
  void count(const Pass& pass, const Rows& rows);
  void run(const Pass& pass);
  void take_results(Request& request);

  RequestParts parts_;
  RequestCompletion* completion_;
  RequestScheduler scheduler_;
  std::uint64_t load_bytes_ = std::uint64_t{32} << 20;  // some 10 ms
};

}  // namespace kvasir
