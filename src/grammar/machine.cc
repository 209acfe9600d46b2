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

// Returns which states the end of the rule can be reached from, where `usable[rule]` says which rules can end.
std::vector<bool> completable(const RuleAutomaton& rule, const std::vector<bool>& usable) {
  std::vector<std::vector<std::uint32_t>> back(rule.states.size());
  std::vector<std::uint32_t> open;
  std::vector<bool> can(rule.states.size());
  for (std::uint32_t i = 0; i < rule.states.size(); ++i) {
    const RuleAutomaton::State& state = rule.states[i];
    for (const ByteEdge& edge : state.edges) back[edge.to].push_back(i);
    for (const RuleAutomaton::Call& call : state.calls)
      if (usable[call.rule]) back[call.to].push_back(i);
    if (!state.accepts) continue;
    can[i] = true;
    open.push_back(i);
  }
  while (!open.empty()) {
    const std::uint32_t state = open.back();
    open.pop_back();
    for (const std::uint32_t from : back[state])
      if (!can[from]) {
        can[from] = true;
        open.push_back(from);
      }
  }
  return can;
}

// Returns the rules that `holds` accepts, given which rules it has accepted so far; accepting more rules never makes it
// reject one.
template <class Holds>
std::vector<bool> least_fixed_point(const Rules& rules, const Holds& holds) {
  std::vector<std::vector<std::uint32_t>> callers(rules.size());
  std::vector<std::uint32_t> open;
  for (std::uint32_t i = 0; i < rules.size(); ++i) {
    if (rules[i].states.empty()) continue;
    open.push_back(i);
    for (const RuleAutomaton::State& state : rules[i].states)
      for (const RuleAutomaton::Call& call : state.calls)
        if (callers[call.rule].empty() || callers[call.rule].back() != i) callers[call.rule].push_back(i);
  }
  std::vector<bool> accepted(rules.size());
  while (!open.empty()) {
    const std::uint32_t rule = open.back();
    open.pop_back();
    if (accepted[rule] || !holds(rules[rule], accepted)) continue;
    accepted[rule] = true;
    open.insert(open.end(), callers[rule].begin(), callers[rule].end());
  }
  return accepted;
}

// Removes what leads to no complete text.
void trim(Rules& rules) {
  const std::vector<bool> usable = least_fixed_point(
      rules,
      [](const RuleAutomaton& rule, const std::vector<bool>& known) -> bool { return completable(rule, known)[0]; });
  for (RuleAutomaton& rule : rules) {
    if (rule.states.empty()) continue;
    const std::vector<bool> can = completable(rule, usable);
    for (RuleAutomaton::State& state : rule.states) {
      std::erase_if(state.edges, [&](const ByteEdge& edge) { return !can[edge.to]; });
      std::erase_if(state.calls, [&](const RuleAutomaton::Call& call) { return !usable[call.rule] || !can[call.to]; });
    }
  }
}

// Whether a rule matches the empty text, given rules that do.
bool is_empty(const RuleAutomaton& rule, const std::vector<bool>& empty) {
  std::vector<std::uint32_t> open = {0};
  std::vector<bool> seen(rule.states.size());
  seen[0] = true;
  while (!open.empty()) {
    const RuleAutomaton::State& state = rule.states[open.back()];
    open.pop_back();
    if (state.accepts) return true;
    for (const RuleAutomaton::Call& call : state.calls)
      if (empty[call.rule] && !seen[call.to]) {
        seen[call.to] = true;
        open.push_back(call.to);
      }
  }
  return false;
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
  const std::vector<bool> empty = least_fixed_point(rules, is_empty);
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
  trim(rules);
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
