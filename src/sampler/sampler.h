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

inline constexpr int kMaxPenaltyWindow = 65536;

// Errors: kInvalidArgument naming the option, the value and the accepted range.
Status validate(const SamplingOptions& options);

class Sampler {
 public:
  // REQUIRES: validate(options).ok().
  explicit Sampler(const SamplingOptions& options);

  // Tells the sampler a token of the context (prompt or generated); the last `penalty_window` count for penalties.
  void observe(std::int32_t token);

  // Picks a token; does not observe it. `logits`: one per vocabulary entry; not changed. temperature 0 is greedy: the
  // largest logit after penalties, the smaller id on a tie. NaN logits are never chosen; if there is nothing else, the
  // result is -1. Of infinite logits only the largest are chosen, with equal chance. REQUIRES: logits not empty.
  std::int32_t sample(std::span<const float> logits);

 private:
  struct Candidate {
    std::int32_t token;
    float logit;
    double weight;  // exp(logit - largest)
  };

  void gather(std::span<const float> logits);
  void keep_top_k();
  void weigh();
  void keep_top_p();
  void keep_min_p();
  std::int32_t draw();
  std::uint64_t next_random();
  bool penalises() const;

  SamplingOptions options_;
  std::uint64_t state_[4];            // xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64
  std::vector<std::int32_t> recent_;  // ring of the last penalty_window tokens
  std::size_t recent_next_ = 0;
  std::unordered_map<std::int32_t, int> counts_;
  std::vector<Candidate> candidates_;
  bool sorted_ = false;  // candidates_ are in order of logit, largest first; else in order of token
};

}  // namespace kvasir
