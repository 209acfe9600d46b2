// Steps that drop candidates for the next token, each by its definition.
//
// A step takes the candidates that the step before it kept, and weights proportional to the probabilities at
// temperature 1. Order is by logit, and by token id on a tie. Thread-safety: pure functions.
#pragma once

#include <span>
#include <vector>

#include "text/vocabulary.h"

namespace kvasir {

// A token that may be chosen.
struct TokenCandidate {
  TokenId token;
  float logit;
  double weight;  // exp((logit - largest) / temperature); for truncation without the temperature
};

// Returns the sum of the weights, which it sets. `temperature`: 0 or more.
double weigh(std::vector<TokenCandidate>& candidates, double temperature);

// Top-n-sigma (Tang et al., 2024): drops logits more than `n` standard deviations below the largest. Mean and deviation
// are those of all finite `logits`. Has no effect if the largest logit is infinite.
void keep_top_n_sigma(std::vector<TokenCandidate>& candidates, std::span<const float> logits, double n);

// Locally typical sampling (Meister et al., 2022): keeps the candidates whose surprisal, -log p, is nearest to the
// entropy, as few as have the probability mass `p`. Orders them by that distance. `total`: the sum of the weights.
void keep_typical(std::vector<TokenCandidate>& candidates, double total, double p);

// XTC, "exclude top choices" (p-e-w, 2024): of the candidates with a probability of at least `threshold`, drops all but
// the least likely. Orders the candidates by logit. `total`: the sum of the weights.
void exclude_top_choices(std::vector<TokenCandidate>& candidates, double total, double threshold);

// Dynamic temperature (kalomaze, 2023): returns the temperature between temperature - range (0 at least) and
// temperature + range, at the power `exponent` of the entropy divided by that of equally likely candidates. `total`:
// the sum of the weights.
double dynamic_temperature(const std::vector<TokenCandidate>& candidates, double total, double temperature,
                           double range, double exponent);

}  // namespace kvasir
