// Chooses the next token from logits: logit bias, penalties, DRY, a mask of allowed tokens, then truncation (see
// SamplingOptions), temperature, then one draw.
// Thread-safety: none; a Sampler belongs to one sequence. Deterministic given options, seed and logits.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "generation/dry_penalty.h"
#include "generation/truncation.h"
#include "kvasir/options.h"
#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

// Errors: kInvalidArgument naming the option, the value and the accepted range.
Status validate(const SamplingOptions& options);

// Tokens that may be chosen: bit `id % 64` of word `id / 64` is set for each. Tokens beyond the last word may not.
// Empty: all tokens may.
using TokenMask = std::span<const std::uint64_t>;

// A Sampler as plain data: everything that determines its next choice.
struct SamplerState {
  SamplingOptions options;
  std::array<std::uint64_t, 4> random{};  // the generator's words
  std::vector<TokenId> recent;            // observed tokens that count for penalties, oldest first
  std::vector<TokenId> dry;               // observed tokens that count for DRY, oldest first; kNoToken: a breaker
};

// Copies continue independently with the same random draws; see reseed().
class Sampler {
 public:
  // REQUIRES: validate(options).ok().
  explicit Sampler(const SamplingOptions& options);

  // Continues where state() was taken. Errors: kDataLoss for a state that no sampler can be in.
  static Result<Sampler> from_state(const SamplerState& state);
  SamplerState state() const;

  // REQUIRES of set_random: words of a sampler.
  const std::array<std::uint64_t, 4>& random() const { return random_; }
  void set_random(const std::array<std::uint64_t, 4>& words) { random_ = words; }

  // Restarts the random draws with another seed, so that copies differ. Keeps the tokens observed so far.
  void reseed(std::uint64_t seed);

  // Adds a token of the context (prompt or generated); the last `penalty_window` count for penalties, the last
  // `dry_window` for DRY. `breaks`: no repetition reaches across the token.
  void observe(TokenId token, bool breaks = false);

  // Returns whether observe() needs `breaks`.
  bool watches_repetitions() const { return dry_.active(); }

  // Chooses a token, without observing it. `logits` [vocabulary] is not changed.
  //   - Temperature 0: the largest logit after penalties, the smaller id on a tie.
  //   - NaN logits are never chosen, nor tokens that `allowed` excludes; if none is left, the result is kNoToken.
  //   - If some logits are +inf, one of these is chosen, with equal probability.
  // REQUIRES: logits not empty.
  TokenId sample(std::span<const float> logits, TokenMask allowed = {});

 private:
  static constexpr std::size_t kLanes = 16;
  static constexpr std::size_t kMostHeaped = 256;  // a larger top-k is selected faster among all

  void count(TokenId token);
  std::span<const float> adjusted(std::span<const float> logits, TokenMask allowed);
  static TokenId largest(std::span<const float> logits);
  void gather(std::span<const float> logits);
  bool gather_few(std::span<const float> logits, std::size_t k);
  void truncate(std::span<const float> logits);
  void keep_top_p(double total);
  void keep_min_p();
  double temperature();
  TokenId draw();
  double next_uniform();
  std::uint64_t next_random();
  bool penalises() const;

  SamplingOptions options_;
  std::array<std::uint64_t, 4> random_{};    // xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64
  std::vector<TokenId> recent_;              // ring of the last penalty_window tokens
  std::size_t recent_next_ = 0;              // the oldest of a full ring
  std::unordered_map<TokenId, int> counts_;  // occurrences in recent_
  DryPenalty dry_;
  std::vector<float> adjusted_;  // scratch of sample(), as is candidates_
  std::vector<TokenCandidate> candidates_;
  bool sorted_ = false;  // candidates_ are ordered by logit, largest first
};

}  // namespace kvasir
