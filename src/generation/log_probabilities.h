// Log-probabilities of tokens: the log-softmax of raw logits, without penalties, truncation or temperature.
//
// Sums are in double, in order of token id, so results depend on the logits alone. NaN logits are ignored. If the
// largest logit is infinite, the tokens that have it share the probability equally, as in sampling.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/vocabulary.h"

namespace kvasir {

struct TokenLogProbability {
  TokenId token = kNoToken;
  double log_probability = 0;
};

// Returns the number of tokens whose logit is at least that of `token`, itself included. REQUIRES: as log_probability.
std::int64_t rank_of(std::span<const float> logits, TokenId token);

// Returns the `n` likeliest tokens, likeliest first, the smaller id first on a tie; fewer if fewer logits are not NaN.
// `logits` [vocabulary]. REQUIRES: n >= 0.
std::vector<TokenLogProbability> top_log_probabilities(std::span<const float> logits, int n);

// Returns the log-probability of one token; -inf for a token whose logit is NaN. REQUIRES: 0 <= token < logits.size().
double log_probability(std::span<const float> logits, TokenId token);

}  // namespace kvasir
