#include "grammar/machine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kMostTableEntries = std::size_t{16} << 20;

// The automata of all rules that the root reaches; by rule. Unreached rules have none.
using Rules = std::vector<RuleAutomaton>;

Result<Rules> automata_of(const Builder& builder, Rule root, const TokenBytes& token_bytes, CompileBudget& budget) {
  Rules rules(builder.rules().size());
  std::vector<std::uint32_t> open = {root.index};
  std::vector<bool> reached(rules.size());
  reached[root.index] = true;
  while (!open.empty()) {
    const std::uint32_t rule = open.back();
    open.pop_back();
    if (budget.stop.stop_requested()) return stopped_error();
    KVASIR_CHECK(builder.rules()[rule].defined);
    KVASIR_ASSIGN_OR_RETURN(rules[rule], rule_automaton(builder, builder.rules()[rule].body, token_bytes, budget));
    for (const RuleAutomaton::State& state : rules[rule].states)
      for (const RuleAutomaton::Call& call : state.calls)
        if (!reached[call.rule]) {
          reached[call.rule] = true;
          open.push_back(call.rule);
        }
  }
  return rules;
}

// For each state of each rule: whether the end of its rule can be reached from it.
using Ending = std::vector<std::vector<bool>>;

// Finds them in one pass over all edges: a state that can end lets the states before it end, and a rule that can end
// lets those end that only waited for it. `by_bytes`: by bytes and calls; otherwise by calls alone, which is without a
// byte.
class EndFinder {
 public:
  EndFinder(const Rules& rules, bool by_bytes) : rules_(rules), ending_(rules.size()), waiting_(rules.size()) {
    back_.resize(rules.size());
    for (std::uint32_t i = 0; i < rules.size(); ++i) add_edges(i, by_bytes);
  }

  Ending run() && {
    for (std::uint32_t i = 0; i < rules_.size(); ++i)
      for (std::uint32_t state = 0; state < rules_[i].states.size(); ++state)
        if (rules_[i].states[state].accepts) reach({i, state});
    while (!open_.empty()) {
      const Place place = open_.back();
      open_.pop_back();
      for (const Edge& edge : back_[place.rule][place.state]) {
        const Place from{place.rule, edge.from};
        if (edge.called < 0 || can_end(static_cast<std::uint32_t>(edge.called))) {
          reach(from);
        } else {
          waiting_[static_cast<std::uint32_t>(edge.called)].push_back(from);
        }
      }
      if (place.state != 0) continue;
      for (const Place& from : std::exchange(waiting_[place.rule], {})) reach(from);
    }
    return std::move(ending_);
  }

 private:
  struct Place {
    std::uint32_t rule = 0;
    std::uint32_t state = 0;
  };
  struct Edge {
    std::uint32_t from = 0;
    std::int64_t called = -1;  // rule that must end first
  };

  void add_edges(std::uint32_t rule, bool by_bytes) {
    const std::vector<RuleAutomaton::State>& states = rules_[rule].states;
    ending_[rule].resize(states.size());
    back_[rule].resize(states.size());
    for (std::uint32_t from = 0; from < states.size(); ++from) {
      if (by_bytes)
        for (const ByteEdge& edge : states[from].edges) back_[rule][edge.to].push_back({from, -1});
      for (const RuleAutomaton::Call& call : states[from].calls) back_[rule][call.to].push_back({from, call.rule});
    }
  }

  bool can_end(std::uint32_t rule) const { return !ending_[rule].empty() && ending_[rule][0]; }

  void reach(const Place& place) {
    if (ending_[place.rule][place.state]) return;
    ending_[place.rule][place.state] = true;
    open_.push_back(place);
  }

  const Rules& rules_;
  Ending ending_;
  std::vector<std::vector<std::vector<Edge>>> back_;  // [rule][state]: what leads there
  std::vector<std::vector<Place>> waiting_;           // for a rule to end
  std::vector<Place> open_;
};

// Returns which rules can end: those whose first state can.
std::vector<bool> first_of(const Ending& ending) {
  std::vector<bool> first(ending.size());
  for (std::size_t i = 0; i < ending.size(); ++i) first[i] = !ending[i].empty() && ending[i][0];
  return first;
}

// Removes what leads to no complete text. Errors: of the first requirement that no text meets.
Status trim(const Builder& builder, Rules& rules) {
  const Ending ending = EndFinder(rules, true).run();
  for (const Builder::Requirement& each : builder.requirements())
    if (!ending[each.rule.index].empty() && !ending[each.rule.index][0]) return each.otherwise;
  const std::vector<bool> usable = first_of(ending);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const std::vector<bool>& can = ending[i];
    for (RuleAutomaton::State& state : rules[i].states) {
      std::erase_if(state.edges, [&](const ByteEdge& edge) { return !can[edge.to]; });
      std::erase_if(state.calls, [&](const RuleAutomaton::Call& call) { return !usable[call.rule] || !can[call.to]; });
    }
  }
  return {};
}

// The rules that a rule may call before it has matched a byte.
std::vector<std::uint32_t> left_calls(const RuleAutomaton& rule, const std::vector<bool>& empty) {
  std::vector<std::uint32_t> open = {0}, called;
  std::vector<bool> seen(rule.states.size());
  if (!seen.empty()) seen[0] = true;
  while (!open.empty() && !rule.states.empty()) {
    const RuleAutomaton::State& state = rule.states[open.back()];
    open.pop_back();
    for (const RuleAutomaton::Call& call : state.calls) {
      called.push_back(call.rule);
      if (!empty[call.rule] || seen[call.to]) continue;
      seen[call.to] = true;
      open.push_back(call.to);
    }
  }
  return called;
}

Status refuse_left_recursion(const Builder& builder, const Rules& rules) {
  const std::vector<bool> empty = first_of(EndFinder(rules, false).run());
  enum class Mark : std::uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(rules.size());
  struct Visit {
    std::uint32_t rule;
    std::vector<std::uint32_t> called;
    std::size_t at = 0;
  };
  for (std::uint32_t root = 0; root < rules.size(); ++root) {
    if (marks[root] != Mark::kNew) continue;
    std::vector<Visit> path;
    const auto enter = [&](std::uint32_t rule) {
      marks[rule] = Mark::kOpen;
      path.push_back({rule, left_calls(rules[rule], empty)});
    };
    enter(root);
    while (!path.empty()) {
      Visit& visit = path.back();
      if (visit.at == visit.called.size()) {
        marks[visit.rule] = Mark::kDone;
        path.pop_back();
        continue;
      }
      const std::uint32_t next = visit.called[visit.at++];
      if (marks[next] == Mark::kOpen)
        return invalid_argument(
            "the rule '{}' can call itself before it has matched anything (left recursion); write it with the "
            "recursion at its end",
            builder.rules()[next].name);
      if (marks[next] == Mark::kNew) enter(next);
    }
  }
  return {};
}

// Sets class_of so that bytes have one class if and only if every state treats them alike.
void find_classes(const Rules& rules, Machine& machine) {
  machine.class_of.fill(0);
  machine.classes = 1;
  for (const RuleAutomaton& rule : rules)
    for (const RuleAutomaton::State& state : rule.states) {
      std::array<std::uint32_t, 256> to;
      to.fill(Machine::kDead);
      for (const ByteEdge& edge : state.edges) std::fill(to.begin() + edge.first, to.begin() + edge.last + 1, edge.to);
      // A byte stays in its class if it leads where the first byte of the class does.
      std::array<int, 256> first;
      first.fill(-1);
      std::vector<std::pair<std::uint64_t, std::uint8_t>> made;  // old class and target, new class
      for (std::size_t byte = 0; byte < 256; ++byte) {
        std::uint8_t& own = machine.class_of[byte];
        if (first[own] < 0) first[own] = static_cast<int>(byte);
        if (to[static_cast<std::size_t>(first[own])] == to[byte]) continue;
        const std::uint64_t key = (std::uint64_t{own} << 32) | to[byte];
        const auto found = std::find_if(made.begin(), made.end(), [&](const auto& each) { return each.first == key; });
        if (found != made.end()) {
          own = found->second;
        } else {
          own = static_cast<std::uint8_t>(machine.classes++);
          made.emplace_back(key, own);
          first[own] = static_cast<int>(byte);
        }
      }
    }
}

}  // namespace

Result<Machine> make_machine(const Builder& builder, Rule root, const TokenBytes& token_bytes, CompileBudget& budget) {
  if (!builder.failure().ok()) return builder.failure();
  KVASIR_ASSIGN_OR_RETURN(Rules rules, automata_of(builder, root, token_bytes, budget));
  KVASIR_RETURN_IF_ERROR(trim(builder, rules));
  const RuleAutomaton::State& first = rules[root.index].states.front();
  if (first.edges.empty() && first.calls.empty() && !first.accepts)
    return invalid_argument("no text matches the grammar");
  KVASIR_RETURN_IF_ERROR(refuse_left_recursion(builder, rules));
  Machine machine;
  find_classes(rules, machine);
  std::vector<std::uint32_t> starts(rules.size());
  std::size_t states = 0;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    starts[i] = static_cast<std::uint32_t>(states);
    states += rules[i].states.size();
  }
  const auto classes = static_cast<std::size_t>(machine.classes);
  if (states * classes > kMostTableEntries) return exhausted("the grammar needs too many states; make it simpler");
  machine.next.assign(states * classes, Machine::kDead);
  machine.start = starts[root.index];
  for (std::size_t i = 0; i < rules.size(); ++i)
    for (const RuleAutomaton::State& from : rules[i].states) {
      std::uint32_t* row = &machine.next[machine.states.size() * classes];
      Machine::State& state = machine.states.emplace_back();
      state.accepts = from.accepts;
      state.ends = from.accepts && from.edges.empty() && from.calls.empty();
      for (const ByteEdge& edge : from.edges) {
        state.live_bytes = static_cast<std::uint16_t>(state.live_bytes + edge.last - edge.first + 1);
        for (std::size_t byte = edge.first; byte <= edge.last; ++byte)
          row[machine.class_of[byte]] = starts[i] + edge.to;
      }
      state.first_call = static_cast<std::uint32_t>(machine.calls.size());
      for (const RuleAutomaton::Call& call : from.calls)
        machine.calls.push_back({starts[call.rule], starts[i] + call.to});
      state.end_call = static_cast<std::uint32_t>(machine.calls.size());
    }
  return machine;
}

}  // namespace kvasir::grammar
