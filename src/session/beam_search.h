// Beam search: finds continuations of high probability, with a given number of beams.
//
// Beams are forks that share pages until they diverge; each step extends all of them in one pass. A finished beam of n
// tokens scores log p / n^length_penalty (Wu et al. 2016, equation 14, in the form that Hugging Face's and vLLM's
// searches use); the search ends when `width` beams have finished and no live one can score above the worst of them.
// Thread-safety: one caller at a time.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvasir/finish_reason.h"
#include "sequence/step.h"
#include "text/tokenizer.h"

namespace kvasir {

struct BeamSearchOptions {
  int width = 4;                // 1 to 64
  double length_penalty = 1.0;  // -10 to 10; above 1 favours long answers
  std::int64_t max_tokens = 256;
  bool ignore_eos = false;
};
// Errors: kInvalidArgument naming the option and the range.
Status validate(const BeamSearchOptions& options);

struct Beam {
  std::vector<TokenId> tokens;  // without the end token
  double log_probability = 0;   // of its tokens, the end token included
  double score = 0;
  FinishReason finish_reason = FinishReason::kLength;
};

// Returns up to `width` beams, best first. `logits`: of the newest token of `root`. `progress` (may be empty) gets the
// number of tokens done and returns false to stop (kCancelled). If memory cannot hold another token of all beams, the
// live ones end as they are (kKvMemory). Errors: kInvalidArgument; kResourceExhausted if memory cannot hold even the
// first token of all beams; kDataLoss.
Result<std::vector<Beam>> beam_search(Step& step, std::unique_ptr<Sequence> root, std::span<const float> logits,
                                      const Tokenizer& tokenizer, const BeamSearchOptions& options,
                                      const std::function<bool(std::int64_t)>& progress);

}  // namespace kvasir
