// Measures how far back a policy remembers: the last D tokens of a text are read a second time, for several D. A model
// that can copy predicts them well while their first occurrence is in the cache (after Willette et al., arXiv
// 2406.17808, fig. 3). Thread-safety: one evaluation at a time per model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/scoring.h"
#include "kvasir/status.h"
#include "runtime/loaded_model.h"

namespace kvasir {

struct RestreamOptions {
  std::string policy = "full";
  std::vector<std::int64_t> distances;  // D, tokens
  int chunk = 256;                      // tokens per forward pass
};

struct RestreamPoint {
  std::int64_t distance = 0;
  std::int64_t tokens = 0;  // scored: D - 1, since the first has no prediction
  double first_nll = 0;     // of these tokens in the first pass: mean negative log-likelihood, nats
  double first_ppl = 0;     // exp(first_nll)
  double nll = 0;           // of the same tokens in the second pass
  double ppl = 0;
};

struct RestreamResult {
  std::string policy;
  std::string codec;
  std::vector<RestreamPoint> points;  // as options.distances
  std::int64_t kept_max = 0;          // most tokens a forward pass saw, second passes included
  std::uint64_t kv_bytes_peak = 0;    // of the first pass
};

// Reads `text` (with BOS in front if the model wants one) into a sequence. Then, for each D, a fork of that sequence
// reads the last D tokens of the text again, as if the text continued with them. Errors: kInvalidArgument for options,
// kResourceExhausted, kCancelled.
Result<RestreamResult> evaluate_restream(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> text,
                                         const RestreamOptions& options, const Progress& progress);

}  // namespace kvasir
