// Feeds text to one sequence, pass after pass, as a batch of one.
// Thread-safety: one caller at a time; runners of one model take turns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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

  // Receives the logits [rows, vocabulary] of the tokens from `first` on. Return false to stop after this chunk.
  using OnPass = std::function<bool(std::int64_t first, int rows, std::span<const float> logits)>;

  // Runs `tokens` behind what the sequence holds, a prompt in chunks of up to `chunk` (0: see prompt_chunk), generated
  // tokens singly. With kLast, only the last pass has logits. Errors: kResourceExhausted when the KV budget is full;
  // tokens of earlier chunks stay. kCancelled when on_pass has returned false.
  Status feed(std::span<const TokenId> tokens, int chunk, Logits logits, const OnPass& on_pass,
              Source source = Source::kPrompt);

  // Runs one pass of feed, for callers that read several sequences side by side. `rest`: what is left of the text; not
  // empty. A pass that repeats the text (RepeatsText) runs none of it: StepResult::tokens is 0. Errors:
  // kResourceExhausted, leaving no trace; kDataLoss where a logit is not finite.
  Result<StepResult> feed_pass(std::span<const TokenId> rest, int chunk, Logits logits, Source source);

  // As Step::set_watch.
  void set_watch(std::function<void(const KvSequence&)> watch);

  // Sets the most rows of a pass, so that chunks are executed in several passes. For tests.
  void set_most_rows(int rows) { most_rows_ = rows; }

  // As Sequence::fork.
  Result<std::unique_ptr<SequenceRunner>> fork();

  // Copies the shared pages that will be written sooner or later. Errors: kResourceExhausted.
  Status own_pages();

  Sequence& whole() { return *sequence_; }
  Step& step() { return step_; }
  const KvSequence& sequence() const { return sequence_->tables(); }
  const RetentionPolicy& policy() const { return sequence_->policy(); }
  const StepTimes& times() const { return step_.times(); }
  const Sequence::Counters& counters() const { return sequence_->counters(); }
  PolicyListener& listener() { return sequence_->listener(); }

 private:
  std::unique_ptr<Sequence> sequence_;
  Step step_;
  int most_rows_ = std::numeric_limits<int>::max();
};

}  // namespace kvasir
