// Longest common subsequences of token sequences, by bit-parallel dynamic programming.
//
// There may be several of the same length; the alignment found is that of the usual trace back from the ends: it takes
// equal tokens as a pair, and otherwise steps back in `y` unless that would shorten the subsequence.
// Takes |x| * |y| bits, and a 64th as many steps; up to |x| * |y| steps where few tokens repeat throughout.
// Thread-safety: one caller at a time; it reuses its buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvasir::metrics {

using TokenSpan = std::span<const std::int32_t>;

class LcsAligner {
 public:
  struct Pair {
    std::size_t x;
    std::size_t y;
  };
  // Returns the positions of the common subsequence, the last first. Valid until the next call.
  std::span<const Pair> align(TokenSpan x, TokenSpan y);

 private:
  void fill_rows(TokenSpan x, TokenSpan y, std::size_t words);

  std::vector<Pair> pairs_;
  std::vector<std::uint64_t> rows_;  // [x][word of y]; a 0 bit: the subsequence grows at this token of y
  std::vector<std::pair<std::int32_t, std::size_t>> places_;  // tokens of y with their positions, sorted
  std::vector<std::uint64_t> mask_;
};

}  // namespace kvasir::metrics
