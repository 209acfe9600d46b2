// How a router chooses the experts of a row.
// Thread-safety: plain values.
#pragma once

namespace kvasir {

// What the weights of experts are made of: their scores.
enum class ExpertScores {
  kSoftmax,          // of the router's outputs for all experts
  kSigmoid,          // of each output by itself
  kSoftmaxOfChosen,  // of the outputs of the chosen experts
};

// A row's experts are the `used` highest by score, or by score plus bias; among equals the first. The weight of an
// expert is its score, without the bias; divided by the sum of the row's weights, if normalized; times `scale`.
struct ExpertChoice {
  ExpertScores scores = ExpertScores::kSoftmax;
  int used = 0;
  bool normalized = false;
  float scale = 1;
};

}  // namespace kvasir
