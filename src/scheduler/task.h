// The work left for one sequence: tokens to read, then tokens to generate, pass by pass. A session's call has one task,
// or one per sample; a request has one per sample.
//
//   Task task(&text, std::move(prompt), std::move(generation));
//   while (task.prepare()) {
//     ... a pass with task.input(), then task.take(result)      // scheduler/batch_runner.h
//     show(task.take_text());
//   }
//   ... task.status(), task.generation()
//
// Thread-safety: one thread per task. Threads may use different tasks concurrently, even of one model and cache: take()
// and prepare() change only the task and its text, and use neither the model's threads nor the cache's budget.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "generation/generation.h"
#include "kvasir/pooling.h"
#include "scheduler/draft_model.h"
#include "scheduler/row_watch.h"
#include "sequence/step.h"

namespace kvasir {

// A sequence with the data its continuation needs.
struct TextState {
  std::unique_ptr<Sequence> sequence;
  std::vector<TokenId>
      newest;                 // the newest tokens, oldest first: at least kMaxPenaltyWindow, or all if there are fewer
  std::vector<float> logits;  // [vocabulary] of the newest token; empty if the last text was not read to its end
  int chunk = 0;              // of prompts; 0: the policy's own
  // What the draft model holds of the text; null: no draft model has drafted for the text yet.
  std::unique_ptr<DraftText> draft = nullptr;
};

// Returns the options with a seed: draws one if they have none.
GenerateOptions with_seed(GenerateOptions options);
// Checks that the seeds seed + i of `samples` samples stay below 2^64; beyond, they would wrap to 0, which means "draw
// a seed". Errors: kInvalidArgument.
Status check_seeds(std::uint64_t seed, int samples);

// Checks GenerateOptions::draft, with the policy that it may name. `has_model`: whether there is a draft model. Errors:
// kInvalidArgument.
Status check_draft(std::string_view draft, bool has_model);

class Task : public DraftJudge {
 public:
  // Reads `prompt` behind the text, then, given a `generation`, continues the text. The text must outlive the task. A
  // task that begins without a sequence keeps all tokens, to run them again after release(); any other keeps only its
  // prompt. REQUIRES: without a prompt, the text has logits.
  Task(TextState* text, std::vector<TokenId> prompt, std::optional<Generation> generation = {});

  // Decides what the next pass runs: checks that the prompt may be read on, or draws the next token. Returns false if
  // there is nothing to run: the task has ended, and status() says how. Repeated calls change nothing.
  bool prepare();

  // Returns the tokens of the next pass, at most `most_rows`. Valid until the task changes. REQUIRES: prepare()
  // returned true; the text has a sequence.
  Sequence::Input input(int most_rows = std::numeric_limits<int>::max()) const;

  // Adds the tokens that the grammar forces next, which the next pass runs together. No effect where reading several
  // tokens at once could change the result, on a text that a session keeps, and before the first generated token. Call
  // it between passes.
  void add_forced();

  // Returns the number of drafts that the next pass runs behind the drawn token, if it may have as many rows.
  int drafts() const { return run_ == tokens_.size() && !pass_.empty() ? static_cast<int>(pass_.size()) - 1 : 0; }
  // Returns how many drafts a model should make for the next pass: the draft model, if that drafts for the task, or the
  // model itself, by passes of drafting_input(). REQUIRES: prepare() returned true.
  int drafts_wanted() const { return run_ == tokens_.size() ? wanted_ : 0; }
  bool wants_draft_model() const { return drafts_wanted() > 0 && generation_->drafting()->options().model; }
  // Returns the next token to run for a draft. Valid until the task changes. REQUIRES: drafts_wanted() > 0.
  Sequence::Input drafting_input() const;
  // Returns what the draft model holds of the text, ready to read on up to the drawn token. REQUIRES:
  // wants_draft_model().
  DraftText& follow_draft(const std::shared_ptr<DraftModel>& model);
  // Lets the draft model take back drafts that did not come true. Call it behind a pass.
  void settle_draft();
  // The newest draft, or the drawn token. REQUIRES: drafts_wanted() > 0.
  const TokenId& newest_draft() const { return pass_.back(); }
  // Says why no model drafts now.
  void excuse_drafts(std::string_view why) { generation_->drafting()->excuse(why); }
  // Takes the result of such a pass. Returns whether there is a further draft to make.
  bool take_draft(const StepResult& result);
  // Ends drafting, wherever it is. The next pass runs what was drafted.
  void end_drafting();
  // Takes in the seconds of the last pass, and of the passes that made its drafts.
  void note_seconds(double seconds, double drafting);

  // Draws the token behind each row, and lets the rows stay that those tokens are in.
  int judge(const StepResult& result) override;
  // Takes the result of the pass. A failed pass ends the task. REQUIRES: the pass ran input().
  void take(const StepResult& result);

  // Ends the generation from outside; see Generation::finish. REQUIRES: the task generates.
  void finish(FinishReason reason) { generation_->finish(reason); }
  // Ends the task with an error; the text then has no logits. REQUIRES: !status.ok().
  void fail(Status status);

  // Returns the text that became complete since the last call.
  std::string take_text();
  // Returns the next piece of text that was held back; see Generation::flush.
  std::string flush() { return generation_->flush(); }

  // Makes the task report the prompt's tokens, each with this many of the likeliest in its place; see
  // GenerateOptions::prompt_logprobs. REQUIRES: the task generates, and nothing has run.
  void report_prompt(int likeliest) { prompt_logprobs_ = likeliest; }
  const std::vector<GeneratedToken>& prompt_choices() const { return prompt_choices_; }

  // Makes the task pool the hidden states of its prompt. REQUIRES: nothing has run; the task generates no token.
  void pool_prompt(Pooling pooling) { pooling_ = pooling; }
  // Returns the pooled hidden states of the prompt tokens that have run, [width]; empty without pool_prompt.
  std::vector<float> pooled() const;

  // Makes the task give a watch the logits that it wants, also of rows that run again after release(). Passes then end
  // with each such row, and nothing forced is added (add_forced). The watch outlives the task. REQUIRES: nothing has
  // run; the task began with an empty sequence; where chunks of more than one wanted row are read, the policy does not
  // care where they end.
  void watch_rows(RowWatch* watch) { watch_ = watch; }
  const RowWatch* watch() const { return watch_; }

  // Drops the sequence and its pages. The task continues once the text has a new one: all tokens are run again, on the
  // same chunks, without being drawn or shown again, so the new sequence has the same bits. REQUIRES: the task began
  // with an empty sequence.
  void release();

  // Returns the same task for a copy of the text, as another sample with its seed (Generation::become). A copy without
  // a sequence continues as after release(). REQUIRES: as release, if it has none.
  Task fork(TextState* text, std::size_t sample, std::uint64_t seed) const;

  // Makes a pass of the prompt end with this many of its tokens, as if the prompt ended there, but without logits. Its
  // policy must not care where chunks end. REQUIRES: at most as many as the prompt has.
  void pause_at(std::int64_t tokens) { pause_ = static_cast<std::size_t>(tokens); }

  // Marks the first `count` tokens as already run by the sequence. REQUIRES: nothing has run, and more tokens than
  // these are to be run.
  void skip(std::int64_t count);

  bool reads() const;                          // the next pass may run more than one row
  std::int64_t left_to_repeat() const;         // rows before the next of tokens_ (Sequence::rows_to_repeat)
  std::int64_t repeated() const;               // such rows so far, of the sequence that the text has
  int chunk() const;                           // most tokens of the next chunk; 0: the policy's
  bool at_start() const { return run_ == 0; }  // nothing has run, or nothing since release()
  std::int64_t left() const { return static_cast<std::int64_t>(tokens_.size() - run_); }  // to run before a new token
  std::int64_t prompt_tokens() const { return static_cast<std::int64_t>(prompt_); }
  std::int64_t prompt_done() const { return static_cast<std::int64_t>(std::min(run_, prompt_)); }
  std::span<const TokenId> tokens() const { return tokens_; }  // kept by the task: the prompt, then generated ones
  std::int64_t tokens_run() const { return static_cast<std::int64_t>(run_); }  // of these, those that have run
  std::int64_t known_tokens() const { return static_cast<std::int64_t>(tokens_.size()); }  // kept by the task
  const Status& status() const { return status_; }
  Sequence& sequence() { return *text_->sequence; }
  const Generation& generation() const { return *generation_; }

 private:
  void note_newest(std::span<const TokenId> tokens);
  void draft();
  void want_drafts(int most);
  void want_no_drafts();  // of the model
  void take_judged(const StepResult& result);
  void take_logits(const StepResult& result);
  void drop_thoughts();
  bool replays() const;
  bool reads_text() const;  // several tokens may run in one pass, as a prompt
  void tell_watch(const StepResult& result);
  bool reports_prompt() const { return prompt_logprobs_ >= 0 && prompt_choices_.size() + 1 < prompt_; }
  void note_prompt(const StepResult& result);
  void pool(const StepResult& result);

  TextState* text_;
  bool replayable_ = false;      // it began without a sequence
  std::vector<TokenId> tokens_;  // the prompt, then, if replayable_, generated tokens: all that recomputing takes
  std::size_t forced_ = 0;       // number of the last tokens_ that the grammar forces and that have not run
  std::size_t prompt_ = 0;       // number of prompt tokens in tokens_
  std::size_t pause_ = 0;        // see pause_at()
  std::size_t run_ = 0;          // number of tokens_ that the sequence holds
  std::size_t noted_ = 0;        // number of tokens_ that have entered text_->newest
  std::optional<Generation> generation_;
  // Thoughts that leave the sequence when `at` tokens_ have run; again after release().
  struct Dropped {
    std::size_t at = 0;
    IndexRange thoughts;
    bool done = false;
  };
  std::optional<Dropped> dropped_;
  TokenId next_ = kNoToken;    // drawn but not run yet
  std::vector<TokenId> pass_;  // `next_` and its drafts; empty: not drafted yet
  int judged_ = 0;             // of these, those that came true in the pass that runs
  // Of drafts that a model makes:
  std::optional<DraftView> view_;
  std::optional<Generation> lookahead_;  // behind the newest draft
  int wanted_ = 0;                       // drafts to make
  int gave_ = 0;          // tokens that the last pass with one generated row or with drafts gave the text
  bool drafted_ = false;  // it had drafts
  std::string fresh_;     // text that take_text will return
  int prompt_logprobs_ = -1;
  std::vector<GeneratedToken> prompt_choices_;  // of the prompt's tokens from the second on
  Pooling pooling_ = Pooling::kNone;
  RowWatch* watch_ = nullptr;
  std::vector<double> pooled_;     // [width]: the sum of hidden states, or the last of them
  std::size_t pooled_tokens_ = 0;  // number of prompt tokens that it covers
  Status status_;
};

}  // namespace kvasir
