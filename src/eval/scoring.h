// What evaluations share: a cache for a policy, and how far a sequence expected the tokens that it was given.
// Thread-safety: one evaluation at a time per model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/loaded_model.h"
#include "engine/memory_plan.h"
#include "engine/sequence_runner.h"
#include "kv/kv_cache.h"
#include "kvasir/status.h"

namespace kvasir {

// Hears how much is done of how much in all; returns false to stop.
using Progress = std::function<bool(std::int64_t done, std::int64_t total)>;

struct TokenScore {
  double logprob = 0;      // log softmax(logits)[token], nats
  bool likeliest = false;  // greedy sampling would have chosen it (of equal logits, the smallest id)
};

// In double. REQUIRES: 0 <= token < logits.size().
TokenScore score_token(std::span<const float> logits, TokenId token);

// How far a sequence's prediction is from that of another, which is taken to be right.
struct LogitDivergence {
  double kld = 0;           // KL(right || other) = sum over the vocabulary of p (ln p - ln q), nats
  bool top1_agree = false;  // the likeliest token of both is the same (of equal logits, the smallest id)
};

// In double, over the whole vocabulary. REQUIRES: two rows of one size, not empty.
LogitDivergence compare_logits(std::span<const float> right, std::span<const float> other);

// A cache for the sequences requested, one after the other, under a policy as it stands at its start: of the model's
// kv_memory, or of what they need where that is 0. Errors: kResourceExhausted.
Result<std::shared_ptr<KvCache>> make_evaluation_cache(const std::shared_ptr<LoadedModel>& model,
                                                       const RetentionPolicy& policy,
                                                       std::span<const MemoryRequest> requests);

// The same of another shape than the model's. `budget` in bytes; 0: what the sequences need.
Result<std::shared_ptr<KvCache>> make_evaluation_cache(const std::shared_ptr<LoadedModel>& model,
                                                       const KvCacheShape& shape, std::uint64_t budget,
                                                       const RetentionPolicy& policy,
                                                       std::span<const MemoryRequest> requests);

// One token per pass is how generated tokens come; more are a prompt.
inline SequenceRunner::Source source_of(int chunk) {
  return chunk == 1 ? SequenceRunner::Source::kGenerated : SequenceRunner::Source::kPrompt;
}

// Reads a text behind what the sequence holds, in passes of up to `chunk`, and scores each of its tokens but the first:
// result[i] is of text[i + 1]. `on_read` (may be empty) hears after each pass how many tokens of the text are read, and
// returns false to stop. Errors: those of SequenceRunner::feed.
Result<std::vector<TokenScore>> score_text(SequenceRunner& runner, std::span<const TokenId> text, int chunk,
                                           const std::function<bool(std::int64_t)>& on_read);

// On a new sequence: reads a prompt in passes of up to `chunk`, then the answer token by token as if it were generated,
// and scores each token of the answer. `on_read` as above, of prompt and answer together. The last token of the answer
// is not read.
Result<std::vector<TokenScore>> score_answer(SequenceRunner& runner, std::span<const TokenId> prompt,
                                             std::span<const TokenId> answer, int chunk,
                                             const std::function<bool(std::int64_t)>& on_read);

}  // namespace kvasir
