// Walks the trie of a vocabulary along the states of an automaton.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/token_trie.h"

namespace kvasir::grammar {

// Walks the descendants of a node in order. `step(state, byte)` returns the state behind a byte, or `dead`, which
// leaves a branch out. `visit(node, state)` is called for each node that is reached; the branch below it is left out if
// it returns false.
template <class State, class Step, class Visit>
void walk(std::span<const TokenTrie::Node> nodes, std::uint32_t root, State start, State dead, const Step& step,
          const Visit& visit) {
  struct Level {
    std::uint32_t end;
    State state;
  };
  std::vector<Level> path = {{nodes[root].end, start}};
  for (std::uint32_t i = root + 1; i < nodes[root].end;) {
    while (i == path.back().end) path.pop_back();
    const TokenTrie::Node& node = nodes[i];
    const State to = step(path.back().state, node.byte);
    if (to == dead || !visit(i, to)) {
      i = node.end;
      continue;
    }
    if (node.end > i + 1) path.push_back({node.end, to});
    ++i;
  }
}

}  // namespace kvasir::grammar
