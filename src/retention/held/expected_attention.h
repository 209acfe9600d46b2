// The attention that queries to come may give to the tokens that a table holds, from the mean and covariance of those
// so far (Expected Attention, Devoto et al., arXiv 2510.00636).
// Thread-safety: pure functions of what they are given.
#pragma once

#include "retention/held/query_moments.h"

namespace kvasir {

struct ExpectedAttention {
  const TableLayout& layout;
  const QueryMoments& queries;
  std::int64_t future = 512;  // positions behind the newest token over which the rotation is averaged
  bool spread = true;         // whether the covariance counts

  // Sets the weights of the tokens from place `first` on, the others' to 0: the mean over query heads of the softmax of
  //   scale * (R m) . k + scale^2 / 2 * k . (R S R^T) k + bias
  // with R the mean rotation. `biases`: by token, or empty. REQUIRES: first < weights.size() == kv.tokens(); one lane.
  void weigh(int table, HeldKv& kv, std::size_t first, std::span<const double> biases, std::span<double> weights) const;

  // Returns the most bytes that weigh allocates for so many tokens: logits, the heads' means and covariances, one of
  // them in double, and what meets some keys at a time.
  static std::uint64_t bytes(const TableLayout& layout, std::int64_t tokens) {
    const auto heads = static_cast<std::uint64_t>(layout.heads), dim = static_cast<std::uint64_t>(layout.head_dim);
    return heads * (static_cast<std::uint64_t>(tokens) * sizeof(double) + dim * (dim + 1) * sizeof(float)) +
           dim * (dim + 2) * sizeof(double) + 8 * dim * sizeof(float);
  }
};

}  // namespace kvasir
