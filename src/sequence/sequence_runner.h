// A single sequence as a batch of one: feeds it text, pass after pass.
// Thread-safety: one caller at a time; runners of one model take turns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "sequence/sequence.h"
#include "sequence/step.h"

namespace kvasir {

class SequenceRunner {
 public:
  using Logits = kvasir::Logits;
  using Source = kvasir::Source;

  SequenceRunner(std::shared_ptr<LoadedModel> model, std::shared_ptr<KvCache> cache,
                 std::unique_ptr<RetentionPolicy> policy);
  // Continues a sequence.
  explicit SequenceRunner(std::unique_ptr<Sequence> sequence);

  // Rows of logits [rows, vocabulary] of the tokens from `first` on; return false to stop after this chunk.
  using OnPass = std::function<bool(std::int64_t first, int rows, std::span<const float> logits)>;

  // Runs `tokens` behind what the sequence holds, in chunks of up to `chunk` (0: what the policy, or else the model's
  // options, say; generated tokens come one by one whatever it is). With kLast, logits come with the last pass only (an
  // empty span with the others). Errors: kResourceExhausted when the KV budget is full; tokens of earlier chunks stay.
  // kCancelled when on_pass said so.
  Status feed(std::span<const TokenId> tokens, int chunk, Logits logits, const OnPass& on_pass,
              Source source = Source::kPrompt);

  // The next chunk of feed, for whoever reads several sequences side by side: of `rest`, what is left of the text (not
  // empty), as many of the first tokens as share a chunk. Errors: kResourceExhausted, leaving no trace; kDataLoss where
  // a logit is not a number.
  Result<StepResult> feed_pass(std::span<const TokenId> rest, int chunk, Logits logits, Source source);

  // Called in front of every pass, when there is room for its tokens. Optional. The time it takes counts nowhere.
  void set_watch(std::function<void(const KvSequence&)> watch);

  // Optional observer of the attention of every pass; may be null. Must outlive the passes.
  void set_tap(AttentionObserver* tap) { sequence_->set_tap(tap); }

  // Rows that a pass runs at most; chunks are then executed in several passes. For tests.
  void set_most_rows(int rows) { most_rows_ = rows; }

  // Shares all pages. Errors: kResourceExhausted.
  Result<std::unique_ptr<SequenceRunner>> fork();

  Status own_pages() { return sequence_->own_pages(); }

  Sequence& whole() { return *sequence_; }
  Step& step() { return step_; }
  const KvSequence& sequence() const { return sequence_->tables(); }
  const RetentionPolicy& policy() const { return sequence_->policy(); }
  const StepTimes& times() const { return step_.times(); }
  std::int64_t kept_max() const { return sequence_->kept_max(); }
  std::int64_t seen_least() const { return sequence_->seen_least(); }
  std::optional<TokenIndex> first_dropped() const { return sequence_->first_dropped(); }

 private:
  std::unique_ptr<Sequence> sequence_;
  Step step_;
  int most_rows_ = std::numeric_limits<int>::max();
};

}  // namespace kvasir
