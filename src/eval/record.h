// Records attention: writes the softmax weights that the engine used on a text under a policy to a trace for replay
// (replay/trace.h), and if its shape has room for them keys, values and queries. Weights of tokens that a row did not
// see are zero. Replaying the same policy on the trace, with the same prompt, chunk and number of KV heads, keeps the
// same tokens.
// Thread-safety: one recording at a time per model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "eval/observed_text.h"
#include "replay/trace.h"

namespace kvasir {

// Checks whether `tokens` tokens can be recorded with these options. Errors: kInvalidArgument.
Status check_record_options(const LoadedModel& model, std::int64_t tokens, const ObservedTextOptions& options);

// Returns the shape of a trace of a model's governed layers, with or without keys, values and queries.
TraceShape trace_shape(const LoadedModel& model, std::int64_t tokens, bool with_keys);

// Writes every row to `writer`, but does not finish it. REQUIRES: `writer` was opened for a trace_shape of text.size()
// tokens. Errors: those of check_record_options, read_observed and the writer.
Result<ObservedText> record_attention(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> text,
                                      const ObservedTextOptions& options, AttentionTraceWriter& writer,
                                      const Progress& progress);

}  // namespace kvasir
