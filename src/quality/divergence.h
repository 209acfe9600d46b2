// The distance between two predictions of the next token.
// Thread-safety: pure function.
#pragma once

#include <span>

namespace kvasir {

// The distance of a prediction from a reference prediction.
struct LogitDivergence {
  double kld = 0;           // KL(right || other) = sum over the vocabulary of p (ln p - ln q), nats
  bool top1_agree = false;  // both have the same likeliest token (the smallest id on a tie)
};

// Computed in double, over the whole vocabulary. REQUIRES: two rows of one size, not empty.
LogitDivergence compare_logits(std::span<const float> right, std::span<const float> other);

}  // namespace kvasir
