// A deterministic automaton over bytes.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::grammar {

// An inclusive range of bytes that leads to a state.
struct ByteEdge {
  std::uint8_t first = 0;
  std::uint8_t last = 0;
  std::uint32_t to = 0;
  bool operator==(const ByteEdge&) const = default;
};

// State 0 is the start. Bytes without an edge lead nowhere.
struct ByteAutomaton {
  struct State {
    std::vector<ByteEdge> edges;  // disjoint, in order
    bool accepts = false;
  };
  std::vector<State> states;

  static constexpr std::uint32_t kNowhere = ~std::uint32_t{0};
  // Returns the state behind a byte, or kNowhere.
  std::uint32_t next(std::uint32_t state, std::uint8_t byte) const;
  // Returns whether it accepts the whole text.
  bool matches(std::string_view text) const;
};

// Returns the automaton that accepts what both accept, or (`complement`) what the first accepts and the second does
// not. Errors: kResourceExhausted beyond `most_states`.
Result<ByteAutomaton> product(const ByteAutomaton& first, const ByteAutomaton& second, bool complement,
                              std::size_t most_states);

// Returns the automaton with the fewest states that accepts the same texts (Moore, 1956).
ByteAutomaton minimised(const ByteAutomaton& automaton);

// Returns an automaton that accepts any valid UTF-8 in which none of the texts occurs (Aho and Corasick, 1975).
// REQUIRES: no text is empty.
ByteAutomaton automaton_without(const std::vector<std::string_view>& texts);

}  // namespace kvasir::grammar
