// One sequence under one policy: plans a pass, runs it, prunes. The step of the engine, without text or sampling.
// Thread-safety: one caller at a time; runners of one model take turns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/loaded_model.h"
#include "engine/policy_driver.h"
#include "kv/kv_cache.h"
#include "kv/policy.h"

namespace kvasir {

// What the next forward pass of a sequence covers. plan_pass takes the rows into the policy.
struct PassPlan {
  int rows = 0;
  std::vector<IndexRange> hidden;  // [rows]
};
PassPlan plan_pass(RetentionPolicy& policy, int want);

inline constexpr int kDefaultChunk = 512;

// How a sequence under this policy is held.
SequenceLayout sequence_layout(const RetentionPolicy& policy);

// Tokens of a prompt that share a pass: `chunk`, or if it is 0 what the policy or else the engine's default says.
int prompt_chunk(const RetentionPolicy& policy, int chunk);

// Whether a text without end can run under the policy: what a pass sees must fit the trained context where positions
// are compact (attention-scored policies; those that decide by range may well be given more, and see more). Errors:
// kInvalidArgument.
Status check_positions(const RetentionPolicy& policy, int chunk, std::int64_t context);

// Rows of the pass that starts at token `done`: prompts go in chunks on a grid anchored at token 0, the rest singly.
int next_pass_rows(std::int64_t done, std::int64_t prompt, std::int64_t total, int chunk);

struct StepTimes {
  double forward = 0;  // seconds in the model
  double cache = 0;    // seconds of cache bookkeeping: making room, scores, pruning, moving, rotating
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
  // Whether tokens are a prompt, read in chunks and ended with the last of them, or were generated, one after the
  // other.
  enum class Source { kPrompt, kGenerated };
  // Rows of logits [rows, vocabulary] of the tokens from `first` on; return false to stop after this pass.
  using OnPass = std::function<bool(std::int64_t first, int rows, std::span<const float> logits)>;

  // Runs `tokens` behind what the sequence holds, in passes of up to `chunk` (0: what the policy, or else the model's
  // options, say; generated tokens come one by one whatever it is). With kLast, logits come with the last pass only (an
  // empty span with the others). Errors: kResourceExhausted when the KV budget is full; tokens of earlier passes stay.
  // kCancelled when on_pass said so.
  Status feed(std::span<const TokenId> tokens, int chunk, Logits logits, const OnPass& on_pass,
              Source source = Source::kPrompt);

  struct PassOutput {
    int tokens = 0;                 // read by the pass
    std::int64_t first = 0;         // id of the token that `logits` begin with
    int rows = 0;                   // of logits
    std::span<const float> logits;  // [rows, vocabulary]; valid until the model's next pass
  };
  // The next pass of feed, for whoever reads several sequences side by side: of `rest`, what is left of the text (not
  // empty), as many of the first tokens as share a pass. Errors: kResourceExhausted, leaving no trace; kDataLoss where
  // a logit is not a number.
  Result<PassOutput> feed_pass(std::span<const TokenId> rest, int chunk, Logits logits, Source source);

  // Somebody who looks at the sequence in front of every pass, when there is room for the pass's tokens. The time it
  // takes counts nowhere.
  void set_watch(std::function<void(const KvSequence&)> watch) { watch_ = std::move(watch); }

  // Somebody more who hears the attention of every pass; nullptr: nobody. Outlives the passes.
  void set_tap(AttentionObserver* tap) { tap_ = tap; }

  // Shares all pages. Errors: kResourceExhausted.
  Result<std::unique_ptr<SequenceRunner>> fork();

  // Copies what is shared and will be written sooner or later: the next pass of a fork under a policy that decides by
  // table would do it. Errors: kResourceExhausted.
  Status own_pages();

  const KvSequence& sequence() const { return sequence_; }
  const RetentionPolicy& policy() const { return *policy_; }
  const StepTimes& times() const { return times_; }
  std::int64_t kept_max() const { return kept_max_; }      // most tokens a pass saw, in any table
  std::int64_t seen_least() const { return seen_least_; }  // tokens the last pass saw, in the table that held fewest

  // The least id that is no longer retained everywhere; nothing while all are.
  std::optional<TokenIndex> first_dropped() const;

 private:
  SequenceRunner(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
                 std::unique_ptr<RetentionPolicy> policy, std::unique_ptr<KvSequence> sequence);
  Status make_room(int rows);
  void prepare_tables(int rows);
  void move_slots(const LaneGroup& table, std::span<const LaneGroup::SlotCopy> copies);
  void prune();
  void prune_range();

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<KvCache> cache_;
  std::unique_ptr<RetentionPolicy> policy_;
  KvSequence sequence_;
  std::vector<AttentionView> views_;      // [tables]
  std::unique_ptr<PolicyDriver> driver_;  // of a policy that decides by table
  AttentionObserver* tap_ = nullptr;
  std::function<void(const KvSequence&)> watch_;
  bool own_pages_ = true;  // no page is shared with a fork
  TokenIndex pruned_;      // end of what was dropped from the table
  StepTimes times_;
  std::int64_t kept_max_ = 0;
  std::int64_t seen_least_ = 0;
};

}  // namespace kvasir
