// One sequence under one policy: plans a pass, runs it, prunes. The step of the engine, without text or sampling.
// Thread-safety: one caller at a time; runners of one model take turns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/loaded_model.h"
#include "kv/kv_cache.h"
#include "kv/policy.h"

namespace kvasir {

// What the next forward pass of a sequence covers. plan_pass takes the rows into the policy.
struct PassPlan {
  int rows = 0;
  std::vector<IdRange> hidden;  // [rows]
};
PassPlan plan_pass(RetentionPolicy& policy, int want);

// Rows of the pass that starts at token `done`: prompts go in chunks on a grid anchored at token 0, the rest singly.
int next_pass_rows(std::int64_t done, std::int64_t prompt, std::int64_t total, int chunk);

struct StepTimes {
  double forward = 0;  // seconds in the model
  double cache = 0;    // seconds of cache bookkeeping: making room, pruning, rotating
  StepTimes& operator+=(const StepTimes& other) {
    forward += other.forward;
    cache += other.cache;
    return *this;
  }
};

class SequenceRunner {
 public:
  SequenceRunner(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
                 std::unique_ptr<RetentionPolicy> policy);

  enum class Logits { kNone, kLast, kAll };
  // Rows of logits [rows, vocabulary] of the tokens from `first` on; return false to stop after this pass.
  using OnPass = std::function<bool(std::int64_t first, int rows, std::span<const float> logits)>;

  // Runs `tokens` behind what the sequence holds, in passes of up to `chunk`. With kLast, logits come with the last
  // pass only (an empty span with the others). Errors: kResourceExhausted when the KV budget is full; tokens of earlier
  // passes stay. kCancelled when on_pass said so.
  Status feed(std::span<const TokenValue> tokens, int chunk, Logits logits, const OnPass& on_pass);

  // Shares all pages. Errors: kResourceExhausted.
  Result<std::unique_ptr<SequenceRunner>> fork() const;

  const LaneGroup& group() const { return sequence_.group(); }
  const KvSequence& sequence() const { return sequence_; }
  const RetentionPolicy& policy() const { return *policy_; }
  const StepTimes& times() const { return times_; }
  std::int64_t kept_max() const { return kept_max_; }  // most tokens a pass saw

 private:
  Status make_room(int rows);
  void prune();

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  std::unique_ptr<RetentionPolicy> policy_;
  KvSequence sequence_;
  AttentionView view_;
  TokenId pruned_;  // end of what was dropped from the table
  StepTimes times_;
  std::int64_t kept_max_ = 0;
};

}  // namespace kvasir
