#include "grammar/automata/byte_automaton.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "base/status.h"

namespace kvasir::grammar {
namespace {

using Row = std::array<std::uint32_t, 256>;

constexpr std::uint32_t kNone = ByteAutomaton::kNowhere;

Row row_of(const ByteAutomaton& automaton, std::uint32_t state) {
  Row row;
  row.fill(kNone);
  if (state == kNone) return row;
  for (const ByteEdge& edge : automaton.states[state].edges)
    std::fill(row.begin() + edge.first, row.begin() + edge.last + 1, edge.to);
  return row;
}

std::vector<ByteEdge> edges_of(const Row& row) {
  std::vector<ByteEdge> edges;
  for (std::size_t begin = 0; begin < row.size();) {
    std::size_t end = begin + 1;
    while (end < row.size() && row[end] == row[begin]) ++end;
    if (row[begin] != kNone)
      edges.push_back({static_cast<std::uint8_t>(begin), static_cast<std::uint8_t>(end - 1), row[begin]});
    begin = end;
  }
  return edges;
}

struct BlockOrder {
  using Key = std::pair<std::uint32_t, std::vector<ByteEdge>>;
  bool operator()(const Key& a, const Key& b) const {
    if (a.first != b.first) return a.first < b.first;
    const auto before = [](const ByteEdge& x, const ByteEdge& y) {
      return std::tie(x.first, x.last, x.to) < std::tie(y.first, y.last, y.to);
    };
    return std::lexicographical_compare(a.second.begin(), a.second.end(), b.second.begin(), b.second.end(), before);
  }
};

// The automaton of all valid UTF-8.
ByteAutomaton utf8_automaton() {
  // 0: between characters; 1 to 3: that many continuation bytes to come; 4 to 7: behind E0, ED, F0, F4.
  ByteAutomaton automaton;
  automaton.states.resize(8);
  automaton.states[0].accepts = true;
  automaton.states[0].edges = {{0x00, 0x7F, 0}, {0xC2, 0xDF, 1}, {0xE0, 0xE0, 4}, {0xE1, 0xEC, 2}, {0xED, 0xED, 5},
                               {0xEE, 0xEF, 2}, {0xF0, 0xF0, 6}, {0xF1, 0xF3, 3}, {0xF4, 0xF4, 7}};
  automaton.states[1].edges = {{0x80, 0xBF, 0}};
  automaton.states[2].edges = {{0x80, 0xBF, 1}};
  automaton.states[3].edges = {{0x80, 0xBF, 2}};
  automaton.states[4].edges = {{0xA0, 0xBF, 1}};
  automaton.states[5].edges = {{0x80, 0x9F, 1}};
  automaton.states[6].edges = {{0x90, 0xBF, 2}};
  automaton.states[7].edges = {{0x80, 0x8F, 2}};
  return automaton;
}

}  // namespace

std::uint32_t ByteAutomaton::next(std::uint32_t state, std::uint8_t byte) const {
  for (const ByteEdge& edge : states[state].edges)
    if (byte >= edge.first && byte <= edge.last) return edge.to;
  return kNowhere;
}

bool ByteAutomaton::matches(std::string_view text) const {
  std::uint32_t state = 0;
  for (const char c : text) {
    state = next(state, static_cast<std::uint8_t>(c));
    if (state == kNowhere) return false;
  }
  return states[state].accepts;
}

Result<ByteAutomaton> product(const ByteAutomaton& first, const ByteAutomaton& second, bool complement,
                              std::size_t most_states) {
  ByteAutomaton result;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> ids;
  std::deque<std::pair<std::uint32_t, std::uint32_t>> open;
  const auto id_of = [&](std::uint32_t a, std::uint32_t b) {
    const auto [found, added] = ids.try_emplace({a, b}, static_cast<std::uint32_t>(result.states.size()));
    if (added) {
      const bool second_accepts = b != kNone && second.states[b].accepts;
      result.states.emplace_back().accepts = first.states[a].accepts && second_accepts != complement;
      open.emplace_back(a, b);
    }
    return found->second;
  };
  id_of(0, 0);
  for (std::size_t state = 0; !open.empty(); ++state) {
    if (result.states.size() > most_states)
      return exhausted("the expression needs more than {} states; make it simpler", most_states);
    const auto [a, b] = open.front();
    open.pop_front();
    const Row to_a = row_of(first, a), to_b = row_of(second, b);
    Row row;
    for (std::size_t byte = 0; byte < row.size(); ++byte) {
      const bool leads = to_a[byte] != kNone && (complement || to_b[byte] != kNone);
      row[byte] = leads ? id_of(to_a[byte], to_b[byte]) : kNone;
    }
    result.states[state].edges = edges_of(row);
  }
  return result;
}

ByteAutomaton minimised(const ByteAutomaton& automaton) {
  // Refines the partition of the states into blocks until a block's states agree on where each byte leads.
  const std::size_t size = automaton.states.size();
  std::vector<std::uint32_t> block(size);
  for (std::size_t i = 0; i < size; ++i) block[i] = automaton.states[i].accepts ? 1 : 0;
  for (std::size_t blocks = 0;;) {
    std::map<std::pair<std::uint32_t, std::vector<ByteEdge>>, std::uint32_t, BlockOrder> ids;
    std::vector<std::uint32_t> refined(size);
    std::vector<std::size_t> first;  // a state of each block
    for (std::size_t i = 0; i < size; ++i) {
      std::vector<ByteEdge> edges = automaton.states[i].edges;
      for (ByteEdge& edge : edges) edge.to = block[edge.to];
      const auto [found, added] = ids.try_emplace({block[i], std::move(edges)}, static_cast<std::uint32_t>(ids.size()));
      if (added) first.push_back(i);
      refined[i] = found->second;
    }
    block = std::move(refined);
    if (ids.size() > blocks) {
      blocks = ids.size();
      continue;
    }
    ByteAutomaton result;
    for (const std::size_t state : first) {  // state 0 is the first of block 0
      result.states.push_back(automaton.states[state]);
      for (ByteEdge& edge : result.states.back().edges) edge.to = block[edge.to];
    }
    return result;
  }
}

ByteAutomaton automaton_without(const std::vector<std::string_view>& texts) {
  // The keyword automaton. `fail`: the longest proper suffix that is a prefix of a text.
  std::vector<Row> next(1);
  next[0].fill(kNone);
  std::vector<bool> bad(1);
  for (const std::string_view text : texts) {
    std::uint32_t state = 0;
    for (const char c : text) {
      const auto byte = static_cast<std::uint8_t>(c);
      if (next[state][byte] == kNone) {
        next[state][byte] = static_cast<std::uint32_t>(next.size());
        next.emplace_back().fill(kNone);
        bad.push_back(false);
      }
      state = next[state][byte];
    }
    bad[state] = true;
  }
  std::vector<std::uint32_t> fail(next.size());
  std::deque<std::uint32_t> open;
  for (std::uint32_t& to : next[0]) {
    if (to == kNone) {
      to = 0;
    } else {
      open.push_back(to);
    }
  }
  while (!open.empty()) {
    const std::uint32_t state = open.front();
    open.pop_front();
    bad[state] = bad[state] || bad[fail[state]];
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::uint32_t& to = next[state][byte];
      const std::uint32_t other = next[fail[state]][byte];
      if (to == kNone) {
        to = other;
      } else {
        fail[to] = other;
        open.push_back(to);
      }
    }
  }
  ByteAutomaton words;
  words.states.resize(next.size());
  for (std::size_t state = 0; state < next.size(); ++state) {
    if (bad[state]) continue;
    words.states[state].accepts = true;
    Row row = next[state];
    for (std::uint32_t& to : row)
      if (bad[to]) to = kNone;
    words.states[state].edges = edges_of(row);
  }
  return std::move(*product(utf8_automaton(), words, false, ~std::size_t{0}));
}

}  // namespace kvasir::grammar
