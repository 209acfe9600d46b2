// From logits to the next token: penalties, then top-k, top-p, min-p, temperature, then one draw.
// Thread-safety: a Sampler belongs to one sequence and one thread. Deterministic given options, seed and logits.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvasir/options.h"
#include "kvasir/status.h"

namespace kvasir {

// Errors: kInvalidArgument naming the option, the value and the accepted range.
Status validate(const SamplingOptions& options);

class Sampler {
 public:
  // REQUIRES: validate(options).ok().
  explicit Sampler(const SamplingOptions& options);

  // Tells the sampler a token of the context (prompt or generated); the last `penalty_window` count for penalties.
  void observe(std::int32_t token);

  // Picks a token; does not observe it. `logits`: one per vocabulary entry; not changed. temperature 0 is greedy: the
  // largest logit after penalties, the smaller id on a tie. NaN logits are never chosen. REQUIRES: logits not empty.
  std::int32_t sample(std::span<const float> logits);

 private:
  struct Candidate {
    std::int32_t token;
    float logit;
  };
  SamplingOptions options_;
  std::uint64_t state_[4];  // xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64
  std::vector<std::int32_t> recent_;  // ring of the last penalty_window tokens
  std::size_t recent_next_ = 0;
  std::unordered_map<std::int32_t, int> counts_;
  std::vector<Candidate> candidates_;
};

}  // namespace kvasir
