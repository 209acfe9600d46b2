// Recording attention: the softmax weights that the engine used on a text under a policy, as a trace for replay
// (replay/trace.h). Weights of tokens that a row did not see are zero. Replaying the same policy on it, with the same
// prompt and chunk and as many KV heads, keeps the same tokens.
// Thread-safety: one recording at a time per model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "eval/scoring.h"
#include "kv/lane_group.h"
#include "kvasir/status.h"
#include "replay/trace.h"

namespace kvasir {

struct RecordOptions {
  std::string policy = "full";
  std::int64_t prefill = 0;  // the first tokens are a prompt; the others are generated, one at a time
  int chunk = 0;             // tokens of the prompt per pass; 0: what the policy, or else the engine, says
};

struct RecordResult {
  std::string policy;
  std::string codec;
  int chunk = 0;                                         // as it was; 0 without a prompt
  std::int64_t kept_max = 0;                             // most tokens a forward pass saw
  bool by_head = false;                                  // the policy decides for each KV head
  std::vector<std::vector<std::vector<TokenId>>> final;  // [layer][one, or KV heads]: held at the end, ascending
};

// Whether `tokens` tokens can be recorded so. Errors: kInvalidArgument.
Status check_record_options(const LoadedModel& model, std::int64_t tokens, const RecordOptions& options);

// Bytes of the weights of a trace.
std::uint64_t trace_bytes(const LoadedModel& model, std::int64_t tokens);

// Writes every row of `writer`, which is of the model's layers and query heads and of text.size() tokens; the caller
// finishes it. Errors: those of check_record_options and of the writer; kDataLoss where the model's attention is not a
// number; kResourceExhausted, kCancelled.
Result<RecordResult> record_attention(const std::shared_ptr<LoadedModel>& model, std::span<const TokenValue> text,
                                      const RecordOptions& options, AttentionTraceWriter& writer,
                                      const Progress& progress);

}  // namespace kvasir
