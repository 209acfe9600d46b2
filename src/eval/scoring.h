// Shared by evaluations: makes a cache for a policy and scores a sequence's predictions.
// Thread-safety: one evaluation at a time per model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "kvasir/status.h"
#include "planning/memory_plan.h"
#include "runtime/loaded_model.h"
#include "sequence/sequence_runner.h"

namespace kvasir {

// Receives the amount of work done and in total; return false to stop.
using Progress = std::function<bool(std::int64_t done, std::int64_t total)>;

struct TokenScore {
  double logprob = 0;      // log softmax(logits)[token], nats
  bool likeliest = false;  // greedy decoding would have chosen it (the smallest id on a tie)
};

// Computed in double. REQUIRES: 0 <= token < logits.size().
TokenScore score_token(std::span<const float> logits, TokenId token);

// Makes a cache large enough for each of the requested sequences, run one after the other under a policy in its initial
// state. Its size is the model's kv_memory, or what the sequences need if that is 0. If the model has two sets of
// angles, all have those that suit the longest (codec_for). Errors: kResourceExhausted.
Result<std::shared_ptr<KvCache>> make_evaluation_cache(const std::shared_ptr<LoadedModel>& model,
                                                       const RetentionPolicy& policy,
                                                       std::span<const MemoryRequest> requests);

// As above, with another shape and budget. `budget` in bytes; 0: what `at_once` of the sequences need together.
Result<std::shared_ptr<KvCache>> make_evaluation_cache(const std::shared_ptr<LoadedModel>& model,
                                                       const KvCacheShape& shape, std::uint64_t budget,
                                                       const RetentionPolicy& policy,
                                                       std::span<const MemoryRequest> requests, int at_once = 1);

// Returns how tokens read in chunks count: as generated tokens if `chunk` is 1, otherwise as a prompt.
inline SequenceRunner::Source source_of(int chunk) {
  return chunk == 1 ? SequenceRunner::Source::kGenerated : SequenceRunner::Source::kPrompt;
}

// Appends a text to the sequence, in passes of up to `chunk` tokens, and scores each of its tokens but the first:
// result[i] belongs to text[i + 1]. `on_read` (may be empty) receives the number of tokens read after each pass, and
// returns false to stop. Errors: those of SequenceRunner::feed.
Result<std::vector<TokenScore>> score_text(SequenceRunner& runner, std::span<const TokenId> text, int chunk,
                                           const std::function<bool(std::int64_t)>& on_read);

// Reads a prompt into a new sequence in passes of up to `chunk` tokens, then the answer token by token as if generated,
// and scores each token of the answer. The answer's last token is scored but not read. `on_read`: as above, counting
// prompt and answer together.
Result<std::vector<TokenScore>> score_answer(SequenceRunner& runner, std::span<const TokenId> prompt,
                                             std::span<const TokenId> answer, int chunk,
                                             const std::function<bool(std::int64_t)>& on_read);

}  // namespace kvasir
