#include "grammar/automata/rule_automaton.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "base/status.h"
#include "grammar/automata/builder.h"
#include "grammar/automata/utf8_ranges.h"

namespace kvasir::grammar {
namespace {

using Set = std::vector<std::uint32_t>;

constexpr int kMostDepth = 4000;

struct SetHash {
  std::size_t operator()(const Set& set) const { return hash64(std::as_bytes(std::span(set))); }
};

// States of which several may be active at once.
class Nondeterministic {
 public:
  struct State {
    std::vector<ByteEdge> edges;
    std::vector<std::uint32_t> empty;  // states that are active too
    std::int64_t rule = -1;            // called; `to` follows
    std::uint32_t to = 0;
  };

  Nondeterministic(const Builder& builder, const TokenBytes& token_bytes, CompileBudget& budget)
      : builder_(builder), token_bytes_(token_bytes), budget_(budget), states_(1) {}

  // Returns the state that matches a node and then ends the rule in state 0.
  std::uint32_t build_rule(std::uint32_t node);

  const std::vector<State>& states() const { return states_; }
  const Status& failure() const { return failure_; }

 private:
  std::uint32_t add();
  // Returns the state that matches a node and then is in `next`.
  std::uint32_t build(std::uint32_t node, std::uint32_t next);
  std::uint32_t build_new(const Builder::Node& node, std::uint32_t next);
  std::uint32_t build_bytes(std::string_view bytes, std::uint32_t next);
  std::uint32_t build_chars(std::span<const CharRange> ranges, std::uint32_t next);
  std::uint32_t build_repeat(const Builder::Node& node, std::uint32_t next);
  std::uint32_t build_automaton(const ByteAutomaton& automaton, std::uint32_t next);

  const Builder& builder_;
  const TokenBytes& token_bytes_;
  CompileBudget& budget_;
  std::vector<State> states_;
  std::unordered_map<std::uint64_t, std::uint32_t> built_;  // by node and next state
  int depth_ = 0;
  Status failure_;
};

std::uint32_t Nondeterministic::add() {
  if (failure_.ok() && states_.size() >= 5 * budget_.states)
    failure_ = exhausted("the grammar needs more than {} states; make it simpler", 5 * budget_.states);
  constexpr std::size_t kSteps = 8;
  if (failure_.ok() && budget_.steps < kSteps)
    failure_ = exhausted("the grammar takes too long to compile; make it simpler");
  if (!failure_.ok()) return 0;
  budget_.steps -= kSteps;
  states_.emplace_back();
  return static_cast<std::uint32_t>(states_.size() - 1);
}

// Builds what can stand last first, the innermost before what holds it: a list of any length, such as the members of an
// object, then takes no depth.
std::uint32_t Nondeterministic::build_rule(std::uint32_t node) {
  std::set<std::uint32_t> last;
  std::vector<std::uint32_t> open = {node};
  while (!open.empty()) {
    const std::uint32_t each = open.back();
    open.pop_back();
    if (!last.insert(each).second) continue;
    const Builder::Node& made = builder_.nodes()[each];
    if (made.kind == Builder::Node::Kind::kSequence) {
      open.push_back(builder_.list(made.a).back());
    } else if (made.kind == Builder::Node::Kind::kChoice) {
      const std::span<const std::uint32_t> parts = builder_.list(made.a);
      open.insert(open.end(), parts.begin(), parts.end());
    } else if (made.kind == Builder::Node::Kind::kRepeat && made.most == 1) {
      open.push_back(made.a);
    }
  }
  // Parts are made before what they are part of.
  for (const std::uint32_t each : last) build(each, 0);
  return build(node, 0);
}

std::uint32_t Nondeterministic::build(std::uint32_t node, std::uint32_t next) {
  const std::uint64_t key = (std::uint64_t{node} << 32) | next;
  if (const auto found = built_.find(key); found != built_.end()) return found->second;
  if (depth_ == kMostDepth) failure_ = exhausted("the grammar nests too deeply; make it simpler");
  if (!failure_.ok()) return 0;
  ++depth_;
  const std::uint32_t state = build_new(builder_.nodes()[node], next);
  --depth_;
  built_.emplace(key, state);
  return state;
}

std::uint32_t Nondeterministic::build_new(const Builder::Node& node, std::uint32_t next) {
  using Kind = Builder::Node::Kind;
  switch (node.kind) {
    case Kind::kNothing: return next;
    case Kind::kNever: return add();
    case Kind::kLiteral: return build_bytes(builder_.text(node.a), next);
    case Kind::kToken: return build_bytes(token_bytes_(builder_.text(node.a)), next);
    case Kind::kChars: return build_chars(builder_.ranges(node.a), next);
    case Kind::kSequence: {
      const std::span<const std::uint32_t> parts = builder_.list(node.a);
      for (std::size_t i = parts.size(); i-- > 0;) next = build(parts[i], next);
      return next;
    }
    case Kind::kChoice: {
      const std::uint32_t state = add();
      for (const std::uint32_t part : builder_.list(node.a)) {
        const std::uint32_t first = build(part, next);
        states_[state].empty.push_back(first);
      }
      return state;
    }
    case Kind::kRepeat: return build_repeat(node, next);
    case Kind::kAutomaton: return build_automaton(builder_.automaton(node.a), next);
    case Kind::kCall: {
      const std::uint32_t state = add();
      states_[state].rule = node.a;
      states_[state].to = next;
      return state;
    }
  }
  return next;
}

std::uint32_t Nondeterministic::build_bytes(std::string_view bytes, std::uint32_t next) {
  for (std::size_t i = bytes.size(); i-- > 0;) {
    const std::uint32_t state = add();
    const auto byte = static_cast<std::uint8_t>(bytes[i]);
    states_[state].edges.push_back({byte, byte, next});
    next = state;
  }
  return next;
}

std::uint32_t Nondeterministic::build_chars(std::span<const CharRange> ranges, std::uint32_t next) {
  const std::uint32_t start = add();
  std::map<std::tuple<std::uint32_t, std::uint8_t, std::uint8_t>, std::uint32_t> tails;
  for (const CharRange& range : ranges)
    for (const ByteRanges& bytes : utf8_ranges(range)) {
      std::uint32_t to = next;
      for (int i = bytes.size - 1; i > 0; --i) {
        const auto [first, last] = bytes.bytes[static_cast<std::size_t>(i)];
        const auto [found, added] = tails.try_emplace({to, first, last}, 0);
        if (added) {
          found->second = add();
          states_[found->second].edges.push_back({first, last, to});
        }
        to = found->second;
      }
      states_[start].edges.push_back({bytes.bytes[0].first, bytes.bytes[0].last, to});
    }
  return start;
}

std::uint32_t Nondeterministic::build_repeat(const Builder::Node& node, std::uint32_t next) {
  if (node.most == Builder::kUnbounded) {
    const std::uint32_t loop = add();
    const std::uint32_t again = build(node.a, loop);
    states_[loop].empty = {again, next};
    next = loop;
  } else {
    const std::uint32_t end = next;
    for (int i = node.least; i < node.most && failure_.ok(); ++i) {
      const std::uint32_t state = add();
      const std::uint32_t more = build(node.a, next);
      states_[state].empty = {more, end};
      next = state;
    }
  }
  for (int i = 0; i < node.least && failure_.ok(); ++i) next = build(node.a, next);
  return next;
}

std::uint32_t Nondeterministic::build_automaton(const ByteAutomaton& automaton, std::uint32_t next) {
  std::vector<std::uint32_t> ids;
  for (std::size_t i = 0; i < automaton.states.size(); ++i) ids.push_back(add());
  if (!failure_.ok() || ids.empty()) return 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    State& state = states_[ids[i]];
    for (const ByteEdge& edge : automaton.states[i].edges) state.edges.push_back({edge.first, edge.last, ids[edge.to]});
    if (automaton.states[i].accepts) state.empty.push_back(next);
  }
  return ids.front();
}

// The subset construction.
class Determinisation {
 public:
  Determinisation(const Nondeterministic& from, CompileBudget& budget)
      : from_(from), budget_(budget), marks_(from.states().size()) {}

  Result<RuleAutomaton> run(std::uint32_t start);

 private:
  std::uint32_t state_of(const Set& starts);
  void expand(std::uint32_t state);
  void add_edges(const Set& set, RuleAutomaton::State& out);

  const Nondeterministic& from_;
  CompileBudget& budget_;
  RuleAutomaton result_;
  std::unordered_map<Set, std::uint32_t, SetHash> ids_;
  std::vector<const Set*> sets_;      // of each state: the keys of ids_
  std::vector<std::uint32_t> marks_;  // number of the closure that reached a state last
  std::uint32_t mark_ = 0;
  std::size_t steps_ = 0;
};

// Returns the state for everything that is active with `starts`.
std::uint32_t Determinisation::state_of(const Set& starts) {
  ++mark_;
  Set open = starts, set;
  while (!open.empty()) {
    const std::uint32_t each = open.back();
    open.pop_back();
    if (marks_[each] == mark_) continue;
    marks_[each] = mark_;
    ++steps_;
    const Nondeterministic::State& state = from_.states()[each];
    open.insert(open.end(), state.empty.begin(), state.empty.end());
    if (each == 0 || !state.edges.empty() || state.rule >= 0) set.push_back(each);
  }
  std::sort(set.begin(), set.end());
  const auto [found, added] = ids_.try_emplace(std::move(set), static_cast<std::uint32_t>(result_.states.size()));
  if (added) {
    result_.states.emplace_back().accepts = !found->first.empty() && found->first.front() == 0;
    sets_.push_back(&found->first);
  }
  return found->second;
}

void Determinisation::add_edges(const Set& set, RuleAutomaton::State& out) {
  std::bitset<257> begins;
  bool any = false;
  for (const std::uint32_t each : set)
    for (const ByteEdge& edge : from_.states()[each].edges) {
      begins[edge.first] = begins[static_cast<std::size_t>(edge.last) + 1] = true;
      any = true;
    }
  if (!any) return;
  std::array<std::uint16_t, 256> interval{};  // that a byte is in; 0: before the first
  std::vector<std::size_t> first_bytes = {0};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (begins[byte]) first_bytes.push_back(byte);
    interval[byte] = static_cast<std::uint16_t>(first_bytes.size() - 1);
  }
  std::vector<Set> targets(first_bytes.size());
  for (const std::uint32_t each : set) {
    if (steps_ > budget_.steps) return;  // run() refuses it
    for (const ByteEdge& edge : from_.states()[each].edges)
      for (std::size_t i = interval[edge.first]; i <= interval[edge.last]; ++i, ++steps_) targets[i].push_back(edge.to);
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].empty()) continue;
    const std::size_t last = i + 1 < first_bytes.size() ? first_bytes[i + 1] - 1 : 255;
    const std::uint32_t to = state_of(targets[i]);
    if (!out.edges.empty() && out.edges.back().to == to && out.edges.back().last + std::size_t{1} == first_bytes[i]) {
      out.edges.back().last = static_cast<std::uint8_t>(last);
    } else {
      out.edges.push_back({static_cast<std::uint8_t>(first_bytes[i]), static_cast<std::uint8_t>(last), to});
    }
  }
}

void Determinisation::expand(std::uint32_t state) {
  const Set& set = *sets_[state];
  RuleAutomaton::State out;
  add_edges(set, out);
  std::map<std::uint32_t, Set> calls;
  for (const std::uint32_t each : set)
    if (const Nondeterministic::State& from = from_.states()[each]; from.rule >= 0)
      calls[static_cast<std::uint32_t>(from.rule)].push_back(from.to);
  for (const auto& [rule, behind] : calls) out.calls.push_back({rule, state_of(behind)});
  out.accepts = result_.states[state].accepts;
  result_.states[state] = std::move(out);
}

Result<RuleAutomaton> Determinisation::run(std::uint32_t start) {
  state_of({start});
  for (std::uint32_t state = 0; state < result_.states.size(); ++state) {
    if (result_.states.size() > budget_.states) return exhausted("the grammar needs too many states; make it simpler");
    if (steps_ > budget_.steps) return exhausted("the grammar takes too long to compile; make it simpler");
    if (budget_.stop.stop_requested()) return stopped_error();
    expand(state);
  }
  budget_.states -= std::min(budget_.states, result_.states.size());
  budget_.steps -= std::min(budget_.steps, steps_);
  return std::move(result_);
}

}  // namespace

Status stopped_error() {
  return exhausted("the request ended before its grammar was compiled");
}

Result<RuleAutomaton> rule_automaton(const Builder& builder, std::uint32_t node, const TokenBytes& token_bytes,
                                     CompileBudget& budget) {
  Nondeterministic states(builder, token_bytes, budget);
  const std::uint32_t start = states.build_rule(node);
  if (!states.failure().ok()) return states.failure();
  return Determinisation(states, budget).run(start);
}

Result<ByteAutomaton> plain_automaton(const Builder& builder, std::uint32_t node, std::size_t most_states,
                                      std::size_t& steps) {
  bool has_token = false;
  const TokenBytes none = [&](std::string_view) {
    has_token = true;
    return std::string();
  };
  CompileBudget budget{.states = most_states, .steps = steps, .stop = builder.stop()};
  Result<RuleAutomaton> made = rule_automaton(builder, node, none, budget);
  steps = budget.steps;
  KVASIR_ASSIGN_OR_RETURN(RuleAutomaton rule, std::move(made));
  ByteAutomaton automaton;
  for (RuleAutomaton::State& state : rule.states) {
    if (has_token || !state.calls.empty())
      return invalid_argument("an expression that is intersected or subtracted calls a rule or names a control token");
    automaton.states.push_back({std::move(state.edges), state.accepts});
  }
  return automaton;
}

}  // namespace kvasir::grammar
