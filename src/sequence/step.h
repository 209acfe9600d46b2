// Runs one forward pass for one sequence or many: plans it, makes room, describes it to a batch, runs the model,
// prunes, and collects the logits.
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

struct StepResult;

// Says which drafts of a pass come true.
class DraftJudge {
 public:
  virtual ~DraftJudge() = default;
  // Returns how many of the pass's rows stay, 1 to result.rows. Called once, on any thread, with the logits of every
  // row.
  virtual int judge(const StepResult& result) = 0;
};

// What one sequence asks of a step.
struct StepRequest {
  Sequence* sequence = nullptr;
  Sequence::Input input;
  DraftJudge* judge = nullptr;  // of input.drafts
};

// The result of a request. Spans are valid until the next step.
struct StepResult {
  // An error where the sequence cannot go on: its logits or hidden states are NaN or infinite (kDataLoss), or offloaded
  // tokens could not be read back. After a pass with Sequence::Input::view it can, but has no draft.
  Status status;
  int tokens = 0;                 // number of tokens that ran, and stay; 0: the pass repeated the text (RepeatsText)
  std::int64_t first = 0;         // index of the token that `logits` begin with
  int rows = 0;                   // of logits
  std::span<const float> logits;  // [rows, vocabulary]
  std::span<const float> hidden;  // [tokens, width] with Sequence::Input::hidden; otherwise empty
};

class Step {
 public:
  // The sequences of all its passes belong to this model and cache.
  Step(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache);

  // What a pass would run.
  struct Plan {
    std::vector<Sequence::PassPlan> passes;  // [requests]
    std::uint64_t bytes = 0;                 // that all rows take, reserves included
    bool fits = true;                        // whether they are available
    int rows = 0;
    Status status;  // an error if a sequence cannot go on (Sequence::status): the plan cannot be run
  };
  // REQUIRES: each sequence at most once, inputs not empty.
  Plan plan(std::span<const StepRequest> requests) const;

  // Executes a plan with the requests it was made of. results: [requests]; a sequence fails alone (StepResult::status).
  // Errors: kResourceExhausted for a plan that does not fit, or the plan's status: nothing has happened.
  Status run(const Plan& plan, std::span<const StepRequest> requests, std::span<StepResult> results);

  // Repeats all that a sequence's policy has the model repeat before its next token; see Sequence::rows_to_repeat.
  // `chunk`: as Sequence::Input::chunk. Errors: as run().
  Status repeat(Sequence& sequence, int chunk);

  // Sets an optional callback, called for each sequence of a pass when room was made and before the model runs. Its
  // time is not part of times().
  void set_watch(std::function<void(const Sequence&)> watch) { watch_ = std::move(watch); }
  // For tests: sets the selector of sequences without their own; may be null. Must outlive the passes.
  void set_selector(EntrySelector* selector) { selector_ = selector; }

  const StepTimes& times() const { return times_; }
  // Returns the bytes of the last batch, without page tables.
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
