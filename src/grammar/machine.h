// All rules of a grammar as one table of states.
// Thread-safety: immutable.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/automata/builder.h"
#include "grammar/automata/rule_automaton.h"

namespace kvasir::grammar {

struct Machine {
  static constexpr std::uint32_t kDead = ~std::uint32_t{0};

  // Behind a call's end the caller goes on in `to`.
  struct Call {
    std::uint32_t start = 0;
    std::uint32_t to = 0;
    bool operator==(const Call&) const = default;
  };
  struct State {
    std::uint32_t first_call = 0;  // index of calls
    std::uint32_t end_call = 0;
    std::uint16_t live_bytes = 0;  // number of bytes that lead somewhere
    bool accepts = false;
    bool ends = false;  // accepts, and nothing can follow in its rule
  };

  // Bytes that no state tells apart have one class.
  int classes = 0;
  std::array<std::uint8_t, 256> class_of{};
  std::vector<std::uint32_t> next;  // [state][class]; kDead: leads nowhere
  std::vector<State> states;
  std::vector<Call> calls;
  std::uint32_t start = 0;

  std::uint32_t next_of(std::uint32_t state, std::uint8_t byte) const {
    return next[std::size_t{state} * static_cast<std::size_t>(classes) + class_of[byte]];
  }
  std::span<const Call> calls_of(std::uint32_t state) const {
    return std::span(calls).subspan(states[state].first_call, states[state].end_call - states[state].first_call);
  }
};

// Returns the table of the rules that `root` reaches, without states from which no text can be completed. Errors:
// kResourceExhausted; kInvalidArgument if no text matches, and for a rule that calls itself before it has matched a
// byte (left recursion).
Result<Machine> make_machine(const Builder& builder, Rule root, const TokenBytes& token_bytes, CompileBudget& budget);

}  // namespace kvasir::grammar
