// How many bytes it takes to tell two states apart, by refining a partition of the states (Moore, 1956).
// Thread-safety: immutable after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/machine.h"

namespace kvasir::grammar {

class Equivalence {
 public:
  static constexpr int kAlways = 1 << 20;

  // Stops after `most_rounds`, or where that would take too long: states that are together then count as told apart by
  // the next byte.
  Equivalence(const Machine& machine, int most_rounds);

  // Returns the length up to which every text of bytes leads both states to states that accept alike and have the same
  // calls, or both nowhere. -1: the states themselves differ; kAlways: any length.
  int depth(std::uint32_t a, std::uint32_t b) const;

  // Blocks of states form a tree: the states of a block are told apart by texts longer than `last` bytes alone. The
  // root is block 0 and its own parent.
  struct Block {
    std::uint32_t parent = 0;
    int last = -1;
  };
  std::uint32_t block_of(std::uint32_t state) const { return block_of_[state]; }
  const Block& block(std::uint32_t index) const { return blocks_[index]; }

 private:
  class Refinement;

  std::vector<Block> blocks_;
  std::vector<std::uint32_t> block_of_;  // of each state
};

}  // namespace kvasir::grammar
