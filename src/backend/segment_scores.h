// Scores of segments of tokens by the bounds of their keys (Tang et al., arXiv 2406.10774, section 3.2), for selectors.
#pragma once

namespace kvasir {

inline constexpr int kScoredSegments = 16;  // that are scored together

// Sets best[i], for each of kScoredSegments segments, to the greatest over the queries of
//   sum over d of max(q_d * low_d, q_d * high_d)        (a float sum, in order of d)
// where the maximum is q_d * high_d for q_d >= 0 and q_d * low_d otherwise, and to NaN if any of these is.
// bounds: [head_dim][low, high][kScoredSegments]; queries: [group][head_dim].
// Thread-safety: pure over its arguments.
using ScoreSegments = void (*)(const float* bounds, const float* queries, int group, int head_dim, float* best);

}  // namespace kvasir
