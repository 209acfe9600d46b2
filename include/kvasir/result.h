// What a continuation gave, and what the KV cache holds of a text.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvasir/finish_reason.h"
#include "kvasir/status.h"

namespace kvasir {

// The KV of one text: of a session, or of one sample of a request.
//
// Bytes are those of the pages that its page tables refer to, each page counted once and whole, shared or not, of the
// tables themselves and of the policy's state. So the bytes of two forks add up to more than the cache holds:
// CacheReport counts a shared page once. A request that ends while others have its pages reports what it held before.
struct KvReport {
  std::string policy;     // canonical spec
  std::string codec;      // "f16"
  std::int64_t seen = 0;  // tokens that entered
  // Tokens retained now that are not beyond the model's sliding window; where layers or heads keep different ones,
  // their mean.
  std::int64_t kept = 0;
  std::int64_t kept_least = 0;   // of the layer or head that retains the fewest
  std::int64_t kept_most = 0;    // and the most
  std::int64_t kept_max = 0;     // most that a forward pass saw, ever, in any layer
  double dead_share = 0;         // of the written slots, those whose token was dropped and that are not reused yet
  std::uint64_t bytes = 0;       // now
  std::uint64_t bytes_peak = 0;  // most there ever were; of a fork, since it was made
  std::uint64_t budget = 0;      // of the cache that it shares with all sessions and requests: bytes there may be
};

// The cache of an engine: all sessions and requests together. Zeros until the first of them makes it.
struct CacheReport {
  std::uint64_t bytes = 0;       // pages in use, each counted once, tables and policies' states now
  std::uint64_t bytes_peak = 0;  // most there ever were
  std::uint64_t budget = 0;      // bytes there may be
};

// A token that was, or might have been, generated at some place. Log-probabilities are those of the model itself: the
// log-softmax of its raw logits, before penalties, truncation and temperature.
struct TokenChoice {
  std::int32_t id = 0;
  std::string bytes;  // perhaps part of a character; a control token's name
  double log_probability = 0;
};

struct GeneratedToken {
  TokenChoice token;
  std::vector<TokenChoice> likeliest;  // likeliest first
};

struct GenerateResult {
  std::string text;                // all of it
  std::int64_t prompt_tokens = 0;  // of a session: read since the last generate(); of a request: of its prompt
  std::int64_t tokens = 0;         // generated
  double prompt_seconds = 0;       // of a request: from submit() until its prompt was read, waiting included
  double seconds = 0;              // of generation; of a request: from there to its end, waiting included
  FinishReason finish_reason = FinishReason::kEnd;
  std::uint64_t seed = 0;  // that the sampler used
  // With GenerateOptions::logprobs: one for each token generated, also of a stop string that the text ends before. An
  // end token is not among them. They grow with the tokens, as the text does.
  std::vector<GeneratedToken> choices;
  KvReport kv;
  Status status;  // kFailed: why, kDataLoss (the model's output is NaN); otherwise ok
};

}  // namespace kvasir
