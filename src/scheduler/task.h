// What one sequence still has to do: tokens to read, then tokens to generate, pass by pass. A session's call is one
// task, or one for each of its samples; a request is one for each of its samples.
//
//   Task task(&text, std::move(prompt), std::move(generation));
//   while (task.prepare()) {
//     ... a pass with task.input(), then task.take(result)      // scheduler/driver.h
//     show(task.take_text());
//   }
//   ... task.status(), task.generation()
//
// Thread-safety: none of one task. Several threads may use a task each, also of one model and one cache: take() and
// prepare() change only the task and its text, and use neither the model's threads nor the cache's budget.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "generation/generation.h"
#include "sequence/step.h"

namespace kvasir {

// A sequence with what its continuation needs.
struct TextState {
  std::unique_ptr<Sequence> sequence;
  std::vector<TokenId>
      newest;                 // the newest tokens, oldest first: at least kMaxPenaltyWindow, or all if there are fewer
  std::vector<float> logits;  // [vocabulary] of the newest token; empty if the last text was not read to its end
  int chunk = 0;              // of prompts; 0: the policy's own
};

// The same options with a seed: where they have none, one is drawn.
GenerateOptions with_seed(GenerateOptions options);
// Checks that the seeds of `samples` samples, seed + i, stay below 2^64: they would go on with 0, which asks for a seed
// to be drawn. Errors: kInvalidArgument.
Status check_seeds(std::uint64_t seed, int samples);

class Task {
 public:
  // Reads `prompt` behind the text. Does nothing else unless `generation` is given: then continues the text. The text
  // must outlive the task. A task that begins without a sequence keeps all tokens, to run them again after release();
  // any other keeps its prompt alone. REQUIRES: without a prompt, the text has logits.
  Task(TextState* text, std::vector<TokenId> prompt, std::optional<Generation> generation = {});

  // Decides what the next pass runs: asks whether the prompt may be read on, or draws the next token. Returns false
  // when there is nothing to run: the task has ended, and status() says how. Repeated calls change nothing.
  bool prepare();

  // The tokens of the next pass, `most_rows` at most. REQUIRES: prepare() returned true, the text has a sequence. Valid
  // until the task changes.
  Sequence::Input input(int most_rows = std::numeric_limits<int>::max()) const;

  // Takes what the pass gave. A failed pass ends the task. REQUIRES: the pass ran input().
  void take(const StepResult& result);

  // Ends the generation from outside; see Generation::finish. REQUIRES: the task generates.
  void finish(FinishReason reason) { generation_->finish(reason); }
  // Ends the task with an error; the text has no logits then. REQUIRES: !status.ok().
  void fail(Status status);

  // Returns the text that became complete since the last call.
  std::string take_text();
  // Returns the next piece of text that was held back; see Generation::flush.
  std::string flush() { return generation_->flush(); }

  // Reports the prompt's tokens with this many of the likeliest in their places; see GenerateOptions::prompt_logprobs.
  // REQUIRES: the task generates, and nothing has run.
  void report_prompt(int likeliest) { prompt_logprobs_ = likeliest; }
  const std::vector<GeneratedToken>& prompt_choices() const { return prompt_choices_; }

  // Gives up the sequence, and with it its pages. The task goes on once the text has a new one: all tokens are run
  // again, on the same chunks, without being drawn or shown again. The new sequence then has the same bits.
  // REQUIRES: the task began with an empty sequence.
  void release();

  // The same task for a copy of the text, with the draws of another seed. A copy without a sequence goes on as after
  // release(). REQUIRES: as release, if it has none.
  Task fork(TextState* text, std::uint64_t seed) const;

  // The sequence has seen the first `count` tokens already: they need not be run. REQUIRES: nothing has run, and more
  // tokens than these are to be run.
  void skip(std::int64_t count);

  bool reads() const;                          // whether the next pass may run more than one token
  int chunk() const;                           // most tokens of the next chunk; 0: as many as its policy says
  bool at_start() const { return run_ == 0; }  // nothing has run, or nothing since release()
  std::int64_t left() const { return static_cast<std::int64_t>(tokens_.size() - run_); }  // to run before a new token
  std::int64_t prompt_tokens() const { return static_cast<std::int64_t>(prompt_); }
  std::int64_t prompt_done() const { return static_cast<std::int64_t>(std::min(run_, prompt_)); }
  std::span<const TokenId> tokens() const { return tokens_; }  // that it keeps: the prompt, then what was generated
  std::int64_t tokens_run() const { return static_cast<std::int64_t>(run_); }  // of these, those that have run
  std::int64_t known_tokens() const { return static_cast<std::int64_t>(tokens_.size()); }  // that it keeps
  const Status& status() const { return status_; }
  Sequence& sequence() { return *text_->sequence; }
  const Generation& generation() const { return *generation_; }

 private:
  void note_newest(std::span<const TokenId> tokens);
  bool reports_prompt() const { return prompt_logprobs_ >= 0 && prompt_choices_.size() + 1 < prompt_; }
  void note_prompt(const StepResult& result);

  TextState* text_;
  bool replayable_ = false;      // it began without a sequence
  std::vector<TokenId> tokens_;  // the prompt, then, if replayable_, what was generated: all that recomputing takes
  std::size_t prompt_ = 0;       // of these, the prompt's
  std::size_t run_ = 0;          // of these, those that the sequence holds
  std::size_t noted_ = 0;        // of these, those that have entered text_->newest
  std::optional<Generation> generation_;
  TokenId next_ = kNoToken;  // drawn and not run yet
  std::string fresh_;        // text that take_text will return
  int prompt_logprobs_ = -1;
  std::vector<GeneratedToken> prompt_choices_;  // of the prompt's tokens from the second on
  Status status_;
};

}  // namespace kvasir
