// Perplexity of a text under a retention policy: one long stream, or windows of fixed length.
// Thread-safety: one evaluation at a time per model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "kvasir/status.h"

namespace kvasir {

struct PerplexityOptions {
  std::string policy = "full";
  std::int64_t window = 0;  // 0: the text is one stream; else each window starts afresh, its first token replaced by
                            // BOS, and its second half is scored (as llama.cpp's llama-perplexity does)
  int chunk = 1;                  // tokens per forward pass
  std::int64_t first_scored = 0;  // of a stream: tokens before this one are read but not scored
};

struct PerplexityResult {
  std::string policy;
  std::string codec;
  std::int64_t tokens = 0;  // scored
  double nll = 0;           // mean negative log-likelihood, nats per token
  double ppl = 0;           // exp(nll)
  double ppl_error = 0;     // standard error: ppl * sd(nll) / sqrt(tokens)
  std::uint64_t kv_bytes_peak = 0;
  std::int64_t kept_max = 0;  // most tokens a forward pass saw
  double tpot_ms = 0;         // median time per token, forward and cache together
  double tpot_p10_ms = 0;
  double tpot_p90_ms = 0;
  double forward_ms = 0;   // mean per token
  double cache_op_ms = 0;  // mean per token
  std::int64_t timed = 0;  // passes behind these times
};

// `tokens` is the text with BOS in front where the model wants one. `progress` hears tokens done and in all and returns
// false to stop. Errors: kInvalidArgument for options, kResourceExhausted, kCancelled.
Result<PerplexityResult> evaluate_perplexity(const std::shared_ptr<LoadedModel>& model,
                                             std::span<const TokenValue> tokens, const PerplexityOptions& options,
                                             const std::function<bool(std::int64_t, std::int64_t)>& progress);

}  // namespace kvasir
