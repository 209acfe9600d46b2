// Turns expressions into automata: first without, then with determinism (Thompson, 1968; Rabin and Scott, 1959).
// Thread-safety: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automata/byte_automaton.h"
#include "kvasir/status.h"

namespace kvasir::grammar {

class Builder;

// The automaton of one rule, deterministic over bytes and over calls. State 0 is the start.
struct RuleAutomaton {
  // Runs another rule from its start; behind its end this automaton goes on in `to`.
  struct Call {
    std::uint32_t rule = 0;
    std::uint32_t to = 0;
    bool operator==(const Call&) const = default;
  };
  struct State {
    std::vector<ByteEdge> edges;  // disjoint, in order
    std::vector<Call> calls;      // at most one of each rule, in order
    bool accepts = false;
  };
  std::vector<State> states;
};

// What compiling may take, for all rules together; reduced by what was taken.
struct CompileBudget {
  std::size_t states = 200'000;
  std::size_t steps = 50'000'000;
  std::stop_token stop = {};  // asked to stop: nobody waits for the grammar any more
};

// The error of what was asked to stop.
Status stopped_error();

// Returns the bytes that stand for a control token of this name in a token's text (token_trie.h), or the name's own
// bytes.
using TokenBytes = std::function<std::string(std::string_view)>;

// Returns the automaton of a node. Errors: kResourceExhausted.
Result<RuleAutomaton> rule_automaton(const Builder& builder, std::uint32_t node, const TokenBytes& token_bytes,
                                     CompileBudget& budget);

// Returns the automaton of a node without calls and control tokens. `steps`: reduced by those that were taken. Errors:
// kResourceExhausted, kInvalidArgument.
Result<ByteAutomaton> plain_automaton(const Builder& builder, std::uint32_t node, std::size_t most_states,
                                      std::size_t& steps);

}  // namespace kvasir::grammar
