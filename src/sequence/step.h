// One step of the engine: plan, run, observe and prune, collect, for one sequence or many in one forward pass.
//
// Thread-safety: one caller at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "sequence/sequence.h"

namespace kvasir {

struct StepTimes {
  double forward = 0;  // seconds in the model
  double cache = 0;    // seconds of cache bookkeeping: making room, scores, pruning, moving, rotating
  StepTimes& operator+=(const StepTimes& other) {
    forward += other.forward;
    cache += other.cache;
    return *this;
  }
};

// What one sequence asks of a step.
struct StepRequest {
  Sequence* sequence = nullptr;
  Sequence::Input input;
};

// What became of it. Spans are valid until the next step.
struct StepResult {
  // The sequence cannot go on: its logits are NaN or infinite (kDataLoss), or what was demoted could not be read back.
  Status status;
  int tokens = 0;                 // that ran
  std::int64_t first = 0;         // index of the token that `logits` begin with
  int rows = 0;                   // of logits
  std::span<const float> logits;  // [rows, vocabulary]
};

class Step {
 public:
  // The sequences of all steps belong to this model and cache.
  Step(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache);

  // What a step would run.
  struct Plan {
    std::vector<Sequence::PassPlan> passes;  // [requests]
    std::uint64_t bytes = 0;                 // that all rows take, reserves included
    bool fits = true;                        // whether they are available
    int rows = 0;
    Status status;  // of the first sequence that cannot go on (Sequence::status); nothing can be run then
  };
  // Changes nothing. REQUIRES: each sequence at most once, inputs not empty.
  Plan plan(std::span<const StepRequest> requests) const;

  // Executes a plan that fits, with the requests it was made of. results: [requests]; their status is an error where a
  // sequence failed; the others are as if it had not been there. Errors: kResourceExhausted for a plan that does not
  // fit, or the plan's status: nothing has happened.
  Status run(const Plan& plan, std::span<const StepRequest> requests, std::span<StepResult> results);

  // Called in front of every pass, when there is room for its tokens. Optional. The time it takes counts nowhere.
  void set_watch(std::function<void(const Sequence&)> watch) { watch_ = std::move(watch); }
  // For tests: what sequences without a selector of their own read. May be null; outlives the passes.
  void set_selector(EntrySelector* selector) { selector_ = selector; }

  const StepTimes& times() const { return times_; }
  // Bytes of the newest batch beside page tables.
  std::uint64_t batch_bytes() const { return batch_.bytes(); }

 private:
  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  Batch batch_;
  std::function<void(const Sequence&)> watch_;
  EntrySelector* selector_ = nullptr;
  StepTimes times_;
};

}  // namespace kvasir
