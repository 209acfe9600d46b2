// Choices that the KV heads of a layer make together, from the scores that each gave its tokens.
//
// Ties: of equal scores the larger index stays, then the lower head. A NaN score counts as the largest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

// The scores of a layer's heads: [heads][tokens of the head].
using HeadScores = std::span<const std::span<const double>>;

// Returns how many tokens each head keeps if the heads share `total`: those of highest score among all heads' stay, and
// of each head at least its `floor` highest (AdaKV, Feng et al., arXiv 2407.11550, Algorithm 1). The first `protect`
// tokens of a head are its highest. REQUIRES: the heads have `total` tokens, and what is certain to stay is no more.
std::vector<std::int64_t> share_among_heads(HeadScores scores, std::int64_t total, std::int64_t floor,
                                            std::int64_t protect);

struct ChunkChoice {
  std::int64_t count = 0;    // tokens that stay
  std::int64_t chunk = 20;   // tokens of a chunk; the last one may be shorter
  std::int64_t protect = 0;  // first tokens that stay in any case
  // A chunk that scores at least the median, with an entropy of scores below the median, is cut to its 4 highest
  // tokens.
  bool gate = false;
};

// Says which tokens stay, chunk by chunk: whole chunks in order of their mean score (ChunkKV, Liu et al.,
// arXiv 2502.00299). The chunk that exceeds `count` gives its highest tokens. What the gate has left goes to the
// highest tokens that did not stay (EntropyGatedChunkKV of kvpress 0.5.5).
std::vector<bool> choose_chunks(std::span<const double> scores, const ChunkChoice& choice);

}  // namespace kvasir
