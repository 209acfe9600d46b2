// Measures recall of one fact in a long text ("needle in a haystack"), by length of the text and depth of the fact.
//
// A fact such as "The secret number of the amber lantern is 48213." is put on a line of its own in filler text. The
// prompt ends with the question "The secret number of the amber lantern is"; the model must continue with the value.
// Thread-safety: NeedlePrompts is immutable; one evaluation at a time per model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "eval/scoring.h"
#include "kvasir/status.h"
#include "runtime/loaded_model.h"
#include "text/tokenizer.h"

namespace kvasir {

struct NeedleOptions {
  std::vector<std::int64_t> lengths = {512, 1024, 2048};   // of prompts, in tokens, BOS included
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1.0};  // place of the fact in the filler: 0 start, 1 end
  int trials = 10;                                         // per length and depth
  std::uint64_t seed = 1;
  // {key} becomes an adjective and a noun, {value} five digits, drawn per trial. The fact has one {value}; the question
  // ends with {value}, which is appended as " {value}" if missing.
  std::string fact = "The secret number of the {key} is {value}.";
  std::string ask = "The secret number of the {key} is {value}";
};

struct NeedlePrompt {
  std::vector<TokenId> prompt;  // exactly as long as requested
  std::vector<TokenId> answer;  // tokens of the value; the prompt has all before them
  std::int64_t fact_at = 0;     // index in `prompt` of the line with the fact
};

// The prompts of all lengths, depths and trials. They depend only on the options, the tokenizer and the filler, so all
// policies, and all models with the same tokenizer, get the same prompts. A trial has the same key, value and part of
// the filler at all depths; adding lengths or depths does not change its other prompts.
class NeedlePrompts {
 public:
  // Tokenizes `filler` once. Errors: kInvalidArgument for invalid options and templates, for a length without room for
  // fact and question, and for too short a filler.
  static Result<NeedlePrompts> create(const Tokenizer& tokenizer, std::string_view filler, NeedleOptions options);

  // Returns a part of the filler with the fact in it, followed by the question. The part starts at a sentence if
  // possible. The fact is put at the sentence end nearest to depth * filler tokens, or exactly there if no sentence
  // ends within an eighth of the part. REQUIRES: indices within the options.
  NeedlePrompt prompt(std::size_t length, std::size_t depth, int trial) const;

  const NeedleOptions& options() const { return options_; }
  std::int64_t most_answer_tokens() const;

 private:
  // The data of a trial that all depths share.
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
  std::vector<TokenId> begin_;  // tokens that the vocabulary puts before a text
  std::vector<TokenId> filler_;
  std::vector<std::size_t> sentences_;  // offsets in filler_ at which a sentence starts, ascending
  std::vector<Trial> trials_;           // [length][trial]
};

struct NeedleCell {
  std::int64_t length = 0;
  double depth = 0;
  int trials = 0;
  double exact = 0;    // share of trials in which greedy decoding gives the answer
  double logprob = 0;  // of the answer's tokens given their predecessors: mean over tokens, then over trials; nats
};

struct NeedleResult {
  std::string policy;
  std::string codec;
  std::vector<NeedleCell> cells;  // [length][depth]
  double exact = 0;               // means over cells
  double logprob = 0;
  std::int64_t kept_max = 0;        // most tokens a forward pass saw
  std::uint64_t kv_bytes_peak = 0;  // of the largest sequence
  // With demotion: pages per KV head that answers recalled, those read from a file, the rows that could recall, and the
  // seconds waited for the file.
  std::int64_t recalled = 0;
  std::int64_t fetched = 0;
  std::int64_t recall_rows = 0;
  double wait_seconds = 0;
};

// `shape`: the cache's, equal to the model's except for the codec. `progress` counts tokens. Errors: kInvalidArgument
// for policy and chunk, kResourceExhausted, kCancelled.
Result<NeedleResult> evaluate_needle(const std::shared_ptr<LoadedModel>& model, const KvCacheShape& shape,
                                     const NeedlePrompts& prompts, const std::string& policy, int chunk,
                                     const Progress& progress);

}  // namespace kvasir
