#include "grammar/interior.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "grammar/trie_walk.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kMostInteriorBytes = std::size_t{48} << 20;

using Pair = std::pair<std::uint32_t, std::uint32_t>;

bool can_leave(const Machine& machine, std::uint32_t state) {
  const Machine::State& reached = machine.states[state];
  return reached.accepts || reached.first_call != reached.end_call;
}

void sort(std::vector<Interior::Exit>& exits) {
  std::sort(exits.begin(), exits.end(), [](const Interior::Exit& a, const Interior::Exit& b) {
    return std::tie(a.state, a.byte, a.node) < std::tie(b.state, b.byte, b.node);
  });
}

// Adds what a node of the trie that leads to `state` brings.
void add_node(const Machine& machine, const TokenTrie& trie, std::uint32_t at, std::uint32_t state, Interior& to) {
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  add_tokens(trie, nodes[at], to.tokens);
  if (!can_leave(machine, state)) return;
  for (std::uint32_t child = at + 1; child < nodes[at].end; child = nodes[child].end)
    to.exits.push_back({state, nodes[child].byte, child});
}

// Adds what the descendants of a node bring, which is in `state`.
void add_below(const Machine& machine, const TokenTrie& trie, std::uint32_t root, std::uint32_t state, Interior& to) {
  walk(
      trie.nodes(), root, state, Machine::kDead,
      [&](std::uint32_t from, std::uint8_t byte) { return machine.next_of(from, byte); },
      [&](std::uint32_t at, std::uint32_t reached) {
        add_node(machine, trie, at, reached, to);
        return true;
      });
}

void remove_tokens(const TokenTrie& trie, std::uint32_t node, TokenBits& mask) {
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  const std::size_t end = nodes[node].end < nodes.size() ? nodes[nodes[node].end].tokens : trie.tokens().size();
  for (std::size_t i = nodes[node].tokens; i < end; ++i) {
    const TokenId token = trie.tokens()[i];
    mask[static_cast<std::size_t>(token) / 64] &= ~(std::uint64_t{1} << (token % 64));
  }
}

// Remembers depths of pairs: a walk meets few of them, again and again.
class DepthCache {
 public:
  explicit DepthCache(const Equivalence& equivalence) : equivalence_(equivalence), known_(1024) {}

  int depth(std::uint32_t a, std::uint32_t b) {
    Entry& entry = known_[(a * 31 + b) % known_.size()];
    if (entry.a != a || entry.b != b) entry = {a, b, equivalence_.depth(a, b)};
    return entry.depth;
  }

 private:
  struct Entry {
    std::uint32_t a = Machine::kDead;
    std::uint32_t b = Machine::kDead;
    int depth = 0;
  };

  const Equivalence& equivalence_;
  std::vector<Entry> known_;
};

std::uint32_t next_or_dead(const Machine& machine, std::uint32_t state, std::uint8_t byte) {
  return state == Machine::kDead ? Machine::kDead : machine.next_of(state, byte);
}

}  // namespace

void add_tokens(const TokenTrie& trie, const TokenTrie::Node& node, TokenBits& mask) {
  for (std::size_t i = 0; i < node.own; ++i) {
    add_token(trie.tokens()[node.tokens + i], mask);
  }
}

Interior make_interior(const Machine& machine, const TokenTrie& trie, std::uint32_t state) {
  Interior interior;
  interior.tokens.resize(trie.words());
  add_below(machine, trie, 0, state, interior);
  sort(interior.exits);
  return interior;
}

Interiors::Interiors(const Machine& machine, const TokenTrie& trie)
    : machine_(machine), trie_(trie), equivalence_(machine, trie.nodes().front().height) {}

const Interior& Interiors::of(std::uint32_t state) {
  if (const auto found = known_.find(state); found != known_.end()) return *found->second;
  const std::optional<std::uint32_t> from = nearest(state);
  std::shared_ptr<const Interior> interior =  // one that is known already has other owners
      from ? derive(state, *from) : std::make_shared<const Interior>(make_interior(machine_, trie_, state));
  if (bytes_ > kMostInteriorBytes) {
    std::shared_ptr<const Interior> kept = known_.at(*from);
    known_.clear();
    of_block_.clear();
    bytes_ = 0;
    keep(*from, std::move(kept));
  }
  keep(state, std::move(interior));
  return *known_.at(state);
}

void Interiors::warm(std::chrono::steady_clock::time_point latest) {
  std::vector<std::uint32_t> states;
  for (std::uint32_t state = 0; state < machine_.states.size(); ++state)
    if (machine_.states[state].live_bytes >= kInteriorBytes) states.push_back(state);
  // Blocks that were split off first differ most from all others, so their interiors take longest.
  std::stable_sort(states.begin(), states.end(), [&](std::uint32_t a, std::uint32_t b) {
    return equivalence_.block_of(a) < equivalence_.block_of(b);
  });
  for (const std::uint32_t state : states) {
    if (std::chrono::steady_clock::now() > latest || bytes_ > kMostInteriorBytes) return;
    of(state);
  }
}

// Returns the known state that is told from this one by the longest texts.
std::optional<std::uint32_t> Interiors::nearest(std::uint32_t state) const {
  for (std::uint32_t block = equivalence_.block_of(state);; block = equivalence_.block(block).parent) {
    if (const auto found = of_block_.find(block); found != of_block_.end()) return found->second;
    if (block == 0) return std::nullopt;
  }
}

void Interiors::keep(std::uint32_t state, std::shared_ptr<const Interior> interior) {
  if (interior.use_count() == 1)
    bytes_ += interior->tokens.size() * 8 + interior->exits.size() * sizeof(Interior::Exit);
  known_.emplace(state, std::move(interior));
  for (std::uint32_t block = equivalence_.block_of(state); of_block_.try_emplace(block, state).second && block != 0;)
    block = equivalence_.block(block).parent;
}

// Follows both states at once and leaves out the branches on which they do not differ.
std::shared_ptr<const Interior> Interiors::derive(std::uint32_t state, std::uint32_t from) const {
  const std::span<const TokenTrie::Node> nodes = trie_.nodes();
  const std::shared_ptr<const Interior>& known = known_.at(from);
  DepthCache depths(equivalence_);
  const auto alike = [&](std::uint32_t a, std::uint32_t b, std::uint32_t node) {
    const int height = nodes[node].height == 255 ? Equivalence::kAlways : nodes[node].height;
    return depths.depth(a, b) >= height;
  };
  if (alike(state, from, 0)) return known;
  auto interior = std::make_shared<Interior>(Interior{known->tokens, {}});
  std::vector<Pair> dropped;  // ranges of nodes whose exits are replaced, in order
  const Pair dead(Machine::kDead, Machine::kDead);
  walk(
      nodes, 0, Pair(state, from), dead,
      [&](const Pair& states, std::uint8_t byte) {
        return Pair(next_or_dead(machine_, states.first, byte), next_or_dead(machine_, states.second, byte));
      },
      [&](std::uint32_t at, const Pair& reached) {
        const auto [own, other] = reached;
        if (own == Machine::kDead) {
          remove_tokens(trie_, at, interior->tokens);
          dropped.emplace_back(at + 1, nodes[at].end);
          return false;
        }
        if (other == Machine::kDead) {
          add_node(machine_, trie_, at, own, *interior);
          add_below(machine_, trie_, at, own, *interior);
          return false;
        }
        if (own == other || alike(own, other, at)) return false;
        if (depths.depth(own, other) < 0)  // they are left in different ways
          for (std::uint32_t child = at + 1; child < nodes[at].end; child = nodes[child].end) {
            if (can_leave(machine_, other)) dropped.emplace_back(child, child + 1);
            if (can_leave(machine_, own)) interior->exits.push_back({own, nodes[child].byte, child});
          }
        return true;
      });
  std::sort(dropped.begin(), dropped.end());
  const std::vector<Interior::Exit>& exits = known->exits;
  for (std::size_t i = 0; i < exits.size();) {
    // Nodes ascend among the exits of one state and byte, as do the ranges, which are disjoint.
    const std::uint32_t owner = exits[i].state;
    const std::uint8_t byte = exits[i].byte;
    auto range = std::upper_bound(dropped.begin(), dropped.end(), Pair(exits[i].node, 0));
    if (range != dropped.begin()) --range;
    for (; i < exits.size() && exits[i].state == owner && exits[i].byte == byte; ++i) {
      while (range != dropped.end() && range->second <= exits[i].node) ++range;
      if (range == dropped.end() || exits[i].node < range->first) interior->exits.push_back(exits[i]);
    }
  }
  sort(interior->exits);
  return interior;
}

}  // namespace kvasir::grammar
