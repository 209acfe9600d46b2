// The DRY penalty ("don't repeat yourself"): lowers the logits of tokens that would lengthen a repetition.
//
// If the last n tokens of the context occurred before, followed by token t, and n >= allowed_length is the largest such
// n, the logit of t loses multiplier * base^(n - allowed_length), at most 10^6. A repetition does not reach across a
// breaker, and a breaker is never lowered.
// Source: the DRY sampler of p-e-w, text-generation-webui pull request 5677 (2024).
// Thread-safety: none.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "kvasir/options.h"
#include "text/vocabulary.h"

namespace kvasir {

class DryPenalty {
 public:
  // REQUIRES: validate(options).ok().
  explicit DryPenalty(const SamplingOptions& options);

  bool active() const { return multiplier_ > 0; }

  // Adds a token of the context; kNoToken stands for a breaker. Has no effect unless active.
  void observe(TokenId token);

  // Returns the penalty of each token that would lengthen a repetition. Time: linear in the window.
  std::unordered_map<TokenId, double> penalties() const;

  // The tokens that count, at most dry_window, oldest first.
  std::span<const TokenId> tokens() const;

 private:
  double multiplier_;
  double base_;
  int allowed_length_;
  std::size_t window_;
  std::vector<TokenId> observed_;  // the last window_ to 2 * window_ tokens
};

}  // namespace kvasir
