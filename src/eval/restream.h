// How long a policy's memory is: a text is read again from D tokens back, for several D, and a model that can copy
// reads it with ease as far as the tokens it saw are still in the cache (after Willette et al., arXiv 2406.17808, fig.
// 3). Thread-safety: one evaluation at a time per model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "eval/scoring.h"
#include "kvasir/status.h"

namespace kvasir {

struct RestreamOptions {
  std::string policy = "full";
  std::vector<std::int64_t> distances;  // D, tokens
  int chunk = 256;                      // tokens per forward pass
};

struct RestreamPoint {
  std::int64_t distance = 0;
  std::int64_t tokens = 0;  // scored: all of the D but the first, which the end of the text does not foretell
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

// Reads `text` (BOS in front where the model wants one) into a sequence; then, for each D, a copy of that sequence
// reads the last D tokens of the text again, as if the text went on with them. Errors: kInvalidArgument for options,
// kResourceExhausted, kCancelled.
Result<RestreamResult> evaluate_restream(const std::shared_ptr<LoadedModel>& model, std::span<const TokenId> text,
                                         const RestreamOptions& options, const Progress& progress);

}  // namespace kvasir
