#include "grammar/equivalence.h"

#include <algorithm>
#include <span>
#include <unordered_map>

#include "base/hash.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kMostWork = 60'000'000;  // of all rounds

using Signature = std::vector<std::uint32_t>;

struct SignatureHash {
  std::size_t operator()(const Signature& signature) const { return hash64(std::as_bytes(std::span(signature))); }
};

}  // namespace

Equivalence::Equivalence(const Machine& machine, int most_rounds) : blocks_(1), block_of_(machine.states.size()) {
  const std::size_t work = machine.states.size() * static_cast<std::size_t>(machine.classes);
  std::size_t done = 0;
  for (int round = 0; refine(machine, round); ++round) {
    done += work;
    if (round < most_rounds && done <= kMostWork) continue;
    for (Block& block : blocks_)
      if (block.last == kAlways) block.last = round;
    return;
  }
}

// Splits each block by where its states lead; in round 0 by what the states are. Returns whether any was split.
bool Equivalence::refine(const Machine& machine, int round) {
  const auto classes = static_cast<std::size_t>(machine.classes);
  std::unordered_map<Signature, std::vector<std::uint32_t>, SignatureHash> groups;
  Signature signature;
  for (std::uint32_t state = 0; state < machine.states.size(); ++state) {
    signature.assign(1, block_of_[state]);
    if (round == 0) {
      signature.push_back(machine.states[state].accepts ? 1 : 0);
      for (const Machine::Call& call : machine.calls_of(state))
        signature.insert(signature.end(), {call.start, call.to});
    } else {
      for (std::size_t each = 0; each < classes; ++each) {
        const std::uint32_t to = machine.next[state * classes + each];
        signature.push_back(to == Machine::kDead ? to : block_of_[to]);
      }
    }
    groups[signature].push_back(state);
  }
  std::vector<std::uint32_t> parts(blocks_.size());
  for (const auto& [key, states] : groups) ++parts[key.front()];
  bool split = false;
  for (const auto& [key, states] : groups) {
    const std::uint32_t from = key.front();
    if (parts[from] == 1 && round > 0) continue;
    split = true;
    blocks_[from].last = round - 1;
    const auto block = static_cast<std::uint32_t>(blocks_.size());
    blocks_.push_back({from, kAlways});
    for (const std::uint32_t state : states) block_of_[state] = block;
  }
  return split;
}

int Equivalence::depth(std::uint32_t a, std::uint32_t b) const {
  std::uint32_t x = block_of_[a], y = block_of_[b];
  // A block is made after its parent.
  while (x != y) (x > y ? x : y) = blocks_[std::max(x, y)].parent;
  return blocks_[x].last;
}

}  // namespace kvasir::grammar
