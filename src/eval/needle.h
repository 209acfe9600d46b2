// Recall of one fact from a long text (the "needle in a haystack"), by length of the text and depth of the fact.
//
// A fact such as "The secret number of the amber lantern is 48213." stands on a line of its own somewhere in filler;
// the prompt ends in the question "The secret number of the amber lantern is", and the value must follow.
// Thread-safety: NeedlePrompts is immutable; one evaluation at a time per model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/loaded_model.h"
#include "eval/scoring.h"
#include "kvasir/status.h"
#include "text/tokenizer.h"

namespace kvasir {

struct NeedleOptions {
  std::vector<std::int64_t> lengths = {512, 1024, 2048};   // of prompts, in tokens, the one for the beginning included
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1.0};  // where in the filler the fact stands: 0 front, 1 end
  int trials = 10;                                         // of each length and depth
  std::uint64_t seed = 1;
  // {key} becomes an adjective and a noun, {value} five digits, both drawn for each trial. The fact has one {value};
  // the question ends in {value}, or " {value}" is added to it.
  std::string fact = "The secret number of the {key} is {value}.";
  std::string ask = "The secret number of the {key} is {value}";
};

struct NeedlePrompt {
  std::vector<TokenId> prompt;  // exactly as long as asked for
  std::vector<TokenId> answer;  // the tokens that hold the value; what precedes it is in the prompt
  std::int64_t fact_at = 0;     // index in `prompt` of the line with the fact
};

// The prompts of all lengths, depths and trials. They depend on the options, the tokenizer and the filler alone, so
// that every policy and model of one tokenizer is asked the same. A trial has the same key, value and stretch of filler
// at all depths; another grid of lengths or depths changes none of its prompts.
class NeedlePrompts {
 public:
  // `filler` is tokenized once. Errors: kInvalidArgument for options and templates, for a length without room for fact
  // and question, and for a filler that is too short.
  static Result<NeedlePrompts> create(const Tokenizer& tokenizer, std::string_view filler, NeedleOptions options);

  // A stretch of filler that begins at a sentence where it can, with the fact at the end of the sentence nearest to
  // depth * filler tokens (or right there where none ends within an eighth of the stretch), cut off before the
  // question. REQUIRES: indices within the options.
  NeedlePrompt prompt(std::size_t length, std::size_t depth, int trial) const;

  const NeedleOptions& options() const { return options_; }
  std::int64_t most_answer_tokens() const;

 private:
  // What all depths of a trial share.
  struct Trial {
    std::vector<TokenId> fact;
    std::vector<TokenId> ask;
    std::vector<TokenId> answer;
    std::size_t filler_begin = 0;
    std::size_t filler_size = 0;
  };
  explicit NeedlePrompts(NeedleOptions options) : options_(std::move(options)) {}
  Result<Trial> make_trial(const Tokenizer& tokenizer, std::int64_t length, int trial) const;
  std::size_t nearest_sentence(const Trial& trial, double depth) const;

  NeedleOptions options_;
  std::vector<TokenId> begin_;  // what the vocabulary puts in front of a text
  std::vector<TokenId> filler_;
  std::vector<std::size_t> sentences_;  // ascending: where in filler_ one begins
  std::vector<Trial> trials_;           // [length][trial]
};

struct NeedleCell {
  std::int64_t length = 0;
  double depth = 0;
  int trials = 0;
  double exact = 0;    // share of trials in which greedy continuation gives the answer
  double logprob = 0;  // of the answer's tokens, each given those before it: mean over tokens, then trials; nats
};

struct NeedleResult {
  std::string policy;
  std::string codec;
  std::vector<NeedleCell> cells;  // [length][depth]
  double exact = 0;               // means over cells
  double logprob = 0;
  std::int64_t kept_max = 0;        // most tokens a forward pass saw
  std::uint64_t kv_bytes_peak = 0;  // of the largest sequence
};

// `progress` hears tokens. Errors: kInvalidArgument for the policy and the chunk, kResourceExhausted, kCancelled.
Result<NeedleResult> evaluate_needle(const std::shared_ptr<LoadedModel>& model, const NeedlePrompts& prompts,
                                     const std::string& policy, int chunk, const Progress& progress);

}  // namespace kvasir
