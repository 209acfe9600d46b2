// Scores that count what a token's value does behind the output projection (CriticalKV, Feng et al., arXiv 2502.03805,
// algorithm 1): some of the tokens that stay are those of highest score, the others those of highest
// (score + epsilon) * ||Wo v||_1.
// Thread-safety: a pure function.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "retention/registry.h"

namespace kvasir {

// Sets the `certain` highest scores to infinity, and multiplies the others, each plus kProjectionEpsilon, by their
// norm. Ties: of equal scores the larger index is higher. A NaN score counts as the largest. REQUIRES: a norm for each
// score.
void weigh_by_projection(std::span<double> scores, std::span<const double> norms, std::int64_t certain);

// Returns how many of the tokens that may be dropped stay by score alone, if `kept` tokens stay, `always` of them in
// any case: half of all that stay, those that always do included.
inline std::int64_t certain_by_score(std::int64_t kept, std::int64_t always) {
  return std::max<std::int64_t>(kept / 2 - always, 0);
}

// Reads kValueOption. Errors: kInvalidArgument.
Result<bool> projects_values(const PolicyOptions& given);

inline constexpr double kProjectionEpsilon = 1e-4;  // as in the published code

inline constexpr PolicyOption kValueOption{
    "value", "off", "off or wo",
    "wo: half of the budget goes to the highest scores, the other half to the highest products of score and ||Wo v||"};

}  // namespace kvasir
