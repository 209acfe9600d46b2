// Recording attention: the softmax weights that the engine used on a text under a policy, as a trace for replay
// (replay/trace.h). Weights of tokens that a row did not see are zero. Replaying the same policy on it, with the same
// prompt and chunk and as many KV heads, keeps the same tokens.
// Thread-safety: one recording at a time per model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "eval/observed_text.h"
#include "replay/trace.h"

namespace kvasir {

// Whether `tokens` tokens can be recorded so. Errors: kInvalidArgument.
Status check_record_options(const LoadedModel& model, std::int64_t tokens, const ObservedTextOptions& options);

// Bytes of the weights of a trace.
std::uint64_t trace_bytes(const LoadedModel& model, std::int64_t tokens);

// Writes every row of `writer`, which is of the model's layers and query heads and of text.size() tokens; the caller
// finishes it. Errors: those of check_record_options, read_observed and the writer.
Result<ObservedText> record_attention(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> text,
                                      const ObservedTextOptions& options, AttentionTraceWriter& writer,
                                      const Progress& progress);

}  // namespace kvasir
