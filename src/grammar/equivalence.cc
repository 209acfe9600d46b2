#include "grammar/equivalence.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/hash.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kMostWork = 60'000'000;  // of all rounds

using Signature = std::vector<std::uint32_t>;

struct SignatureHash {
  std::size_t operator()(const Signature& signature) const { return hash64(std::as_bytes(std::span(signature))); }
};

}  // namespace

// Splits blocks round by round. Only states of which a successor has changed its block can differ from the others of
// their own block, so each round looks at those alone.
class Equivalence::Refinement {
 public:
  Refinement(const Machine& machine, Equivalence& result)
      : machine_(machine), result_(result), classes_(static_cast<std::size_t>(machine.classes)), members_(1) {
    find_predecessors();
    for (std::uint32_t state = 0; state < machine.states.size(); ++state) members_[0].push_back(state);
    touched_ = members_[0];
  }

  // Splits each block by where its states lead; in round 0 by what the states are. Returns whether any was split.
  bool refine(int round) {
    std::vector<Split> splits;
    for (auto begin = touched_.begin(); begin != touched_.end();) {
      const std::uint32_t block = result_.block_of_[*begin];
      const auto end =
          std::find_if(begin, touched_.end(), [&](std::uint32_t state) { return result_.block_of_[state] != block; });
      Split split = split_of(block, std::span(begin, end), round);
      if (split.parts.size() > 1 || round == 0) splits.push_back(std::move(split));
      begin = end;
    }
    std::vector<std::uint32_t> changed;
    for (Split& split : splits) apply(split, round, changed);
    touch_before(changed);
    return !splits.empty();
  }

  // What the next round takes.
  std::size_t work() const { return touched_.size() * classes_; }

 private:
  struct Split {
    std::uint32_t block = 0;
    std::vector<std::vector<std::uint32_t>> parts;
  };

  // Sets predecessors_[begins_[s]...begins_[s + 1]] to the states with a byte that leads to s.
  void find_predecessors() {
    const auto each_edge = [&](const auto& visit) {
      for (std::uint32_t from = 0; from < machine_.states.size(); ++from)
        for (std::size_t i = from * classes_; i < (from + 1) * classes_; ++i)
          if (const std::uint32_t to = machine_.next[i];
              to != Machine::kDead && (i == from * classes_ || machine_.next[i - 1] != to))
            visit(from, to);
    };
    begins_.assign(machine_.states.size() + 1, 0);
    each_edge([&](std::uint32_t, std::uint32_t to) { ++begins_[to + 1]; });
    std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
    predecessors_.resize(begins_.back());
    std::vector<std::size_t> at(begins_.begin(), begins_.end() - 1);
    each_edge([&](std::uint32_t from, std::uint32_t to) { predecessors_[at[to]++] = from; });
  }

  Signature signature_of(std::uint32_t state, int round) const {
    Signature signature;
    if (round == 0) {
      signature.push_back(machine_.states[state].accepts ? 1 : 0);
      for (const Machine::Call& call : machine_.calls_of(state))
        signature.insert(signature.end(), {call.start, call.to});
      return signature;
    }
    signature.reserve(classes_);
    for (std::size_t each = 0; each < classes_; ++each) {
      const std::uint32_t to = machine_.next[state * classes_ + each];
      signature.push_back(to == Machine::kDead ? to : result_.block_of_[to]);
    }
    return signature;
  }

  Split split_of(std::uint32_t block, std::span<const std::uint32_t> touched, int round) const {
    Split split{block, {}};
    std::unordered_map<Signature, std::size_t, SignatureHash> parts;
    for (const std::uint32_t state : touched) {
      const auto [found, added] = parts.try_emplace(signature_of(state, round), split.parts.size());
      if (added) split.parts.emplace_back();
      split.parts[found->second].push_back(state);
    }
    if (touched.size() == members_[block].size()) return split;
    // The others lead where they led, all alike, and none of those above do. Both lists are in order.
    std::set_difference(members_[block].begin(), members_[block].end(), touched.begin(), touched.end(),
                        std::back_inserter(split.parts.emplace_back()));
    return split;
  }

  void apply(Split& split, int round, std::vector<std::uint32_t>& changed) {
    result_.blocks_[split.block].last = round - 1;
    members_[split.block] = {};
    for (std::vector<std::uint32_t>& part : split.parts) {
      const auto block = static_cast<std::uint32_t>(result_.blocks_.size());
      result_.blocks_.push_back({split.block, kAlways});
      for (const std::uint32_t state : part) result_.block_of_[state] = block;
      changed.insert(changed.end(), part.begin(), part.end());
      std::sort(part.begin(), part.end());
      members_.push_back(std::move(part));
    }
  }

  void touch_before(const std::vector<std::uint32_t>& changed) {
    touched_.clear();
    for (const std::uint32_t state : changed)
      touched_.insert(touched_.end(), predecessors_.begin() + static_cast<std::ptrdiff_t>(begins_[state]),
                      predecessors_.begin() + static_cast<std::ptrdiff_t>(begins_[state + 1]));
    const auto place = [&](std::uint32_t state) { return std::pair(result_.block_of_[state], state); };
    std::sort(touched_.begin(), touched_.end(), [&](std::uint32_t a, std::uint32_t b) { return place(a) < place(b); });
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
  }

  const Machine& machine_;
  Equivalence& result_;
  std::size_t classes_;
  std::vector<std::size_t> begins_;
  std::vector<std::uint32_t> predecessors_;
  std::vector<std::vector<std::uint32_t>> members_;  // of each block that is not split, in order
  std::vector<std::uint32_t> touched_;               // states to look at, by block and in order
};

Equivalence::Equivalence(const Machine& machine, int most_rounds) : blocks_(1), block_of_(machine.states.size()) {
  Refinement refinement(machine, *this);
  std::size_t done = 0;
  for (int round = 0;; ++round) {
    done += refinement.work();
    if (!refinement.refine(round)) return;
    if (round < most_rounds && done <= kMostWork) continue;
    for (Block& block : blocks_)
      if (block.last == kAlways) block.last = round;
    return;
  }
}

int Equivalence::depth(std::uint32_t a, std::uint32_t b) const {
  std::uint32_t x = block_of_[a], y = block_of_[b];
  // A block is made after its parent.
  while (x != y) (x > y ? x : y) = blocks_[std::max(x, y)].parent;
  return blocks_[x].last;
}

}  // namespace kvasir::grammar
