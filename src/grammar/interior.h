// The inside of a rule, for states that most tokens can follow.
// Thread-safety: none, but for values.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "grammar/equivalence.h"
#include "grammar/machine.h"
#include "grammar/token_trie.h"

namespace kvasir::grammar {

// A bit for each token, in order of id.
using TokenBits = std::vector<std::uint64_t>;

// What tokens do that start in one state, as far as they stay in its rule.
struct Interior {
  // A node of the trie whose byte is read once the item in `state` has left it by a call or by the end of its rule.
  struct Exit {
    std::uint32_t state = 0;
    std::uint8_t byte = 0;
    std::uint32_t node = 0;
  };
  TokenBits tokens;         // those whose bytes all stay in the rule
  std::vector<Exit> exits;  // in order
};

// States with fewer bytes that lead on are followed token by token: few tokens can follow them.
inline constexpr int kInteriorBytes = 20;

// The interiors of a machine's states, worked out when they are first asked for. States that differ little share most
// of the work: the inside of a string of at most 30 characters is that of one of at most 29 but for long tokens.
class Interiors {
 public:
  // Both must outlive this.
  Interiors(const Machine& machine, const TokenTrie& trie);

  // Returns the interior of a state; valid until the next call.
  const Interior& of(std::uint32_t state);

  std::size_t bytes() const { return bytes_; }

  // Works out those that take longest, until `latest` or until memory for them is used up.
  void warm(std::chrono::steady_clock::time_point latest);

 private:
  std::shared_ptr<const Interior> derive(std::uint32_t state, std::uint32_t from) const;
  void keep(std::uint32_t state, std::shared_ptr<const Interior> interior);
  std::optional<std::uint32_t> nearest(std::uint32_t state) const;

  const Machine& machine_;
  const TokenTrie& trie_;
  const Equivalence equivalence_;
  std::unordered_map<std::uint32_t, std::shared_ptr<const Interior>> known_;
  std::unordered_map<std::uint32_t, std::uint32_t> of_block_;  // a known state of each block that has one
  std::size_t bytes_ = 0;
};

// Returns the interior of a state, from nothing.
Interior make_interior(const Machine& machine, const TokenTrie& trie, std::uint32_t state);

// Sets a token's bit.
inline void add_token(TokenId token, TokenBits& bits) {
  bits[static_cast<std::size_t>(token) / 64] |= std::uint64_t{1} << (token % 64);
}

// Sets the bits of the tokens that end at a node of the trie.
void add_tokens(const TokenTrie& trie, const TokenTrie::Node& node, TokenBits& mask);

}  // namespace kvasir::grammar
