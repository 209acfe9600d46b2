#include "grammar/automata/builder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "grammar/automata/rule_automaton.h"

namespace kvasir::grammar {
namespace {

constexpr std::size_t kMostNodes = 1'000'000;
constexpr std::size_t kMostBuilderBytes = std::size_t{32} << 20;  // of literals, lists and ranges
constexpr std::size_t kMostOperandStates = 20'000;

}  // namespace

Builder::Builder(std::stop_token stop) : nodes_(2), stop_(std::move(stop)) {
  nodes_[1].kind = Node::Kind::kNever;
}

Expr Builder::add(Node node, std::size_t bytes) {
  bytes_ += bytes;
  if (nodes_.size() >= kMostNodes || bytes_ > kMostBuilderBytes)
    failure_ = exhausted("the grammar is too large; make it simpler");
  if (!failure_.ok()) return never();
  nodes_.push_back(node);
  return {static_cast<std::uint32_t>(nodes_.size() - 1)};
}

Expr Builder::literal(std::string_view bytes) {
  if (bytes.empty()) return nothing();
  texts_.emplace_back(bytes);
  return add({Node::Kind::kLiteral, static_cast<std::uint32_t>(texts_.size() - 1)}, bytes.size());
}

Expr Builder::token(std::string_view name) {
  texts_.emplace_back(name);
  return add({Node::Kind::kToken, static_cast<std::uint32_t>(texts_.size() - 1)}, name.size());
}

Expr Builder::one_of(std::span<const CharRange> ranges) {
  std::vector<CharRange> sorted(ranges.begin(), ranges.end());
  std::erase_if(sorted, [](const CharRange& range) { return range.first > range.last; });
  if (sorted.empty()) return never();
  std::sort(sorted.begin(), sorted.end());
  std::vector<CharRange> merged;
  for (const CharRange& range : sorted) {
    if (!merged.empty() && range.first <= merged.back().last + 1) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  ranges_.push_back(std::move(merged));
  return add({Node::Kind::kChars, static_cast<std::uint32_t>(ranges_.size() - 1)},
             ranges_.back().size() * sizeof(CharRange));
}

Expr Builder::list_of(Node::Kind kind, std::span<const Expr> parts) {
  std::vector<std::uint32_t> list;
  list.reserve(parts.size());
  for (const Expr part : parts) list.push_back(part.index);
  lists_.push_back(std::move(list));
  return add({kind, static_cast<std::uint32_t>(lists_.size() - 1)}, parts.size() * sizeof(std::uint32_t));
}

Expr Builder::sequence(std::span<const Expr> parts) {
  if (parts.empty()) return nothing();
  if (parts.size() == 1) return parts.front();
  return list_of(Node::Kind::kSequence, parts);
}

Expr Builder::choice(std::span<const Expr> parts) {
  if (parts.empty()) return never();
  if (parts.size() == 1) return parts.front();
  return list_of(Node::Kind::kChoice, parts);
}

Expr Builder::repeat(Expr part, int least, int most) {
  KVASIR_CHECK(least >= 0 && (most == kUnbounded || most >= least));
  if (most == 0) return nothing();
  if (least == 1 && most == 1) return part;
  return add({Node::Kind::kRepeat, part.index, least, most});
}

Expr Builder::combine(Expr first, Expr second, bool keep_second) {
  if (!failure_.ok()) return never();
  const auto automaton_of = [&](Expr expr) {
    return plain_automaton(*this, expr.index, kMostOperandStates, combine_steps_);
  };
  Result<ByteAutomaton> result = automaton_of(first);
  if (result.ok()) {
    Result<ByteAutomaton> other = automaton_of(second);
    result = other.ok() ? product(*result, *other, !keep_second, kMostOperandStates) : other.status();
  }
  if (result.ok()) {
    combine_steps_ -= std::min(combine_steps_, result->states.size() * 256);
    return automaton(std::move(*result));
  }
  if (failure_.ok()) failure_ = result.status();
  return never();
}

Expr Builder::both(Expr first, Expr second) {
  return combine(first, second, true);
}

Expr Builder::without(Expr first, Expr second) {
  return combine(first, second, false);
}

Expr Builder::text_without(std::span<const std::string> texts) {
  for (const std::string& text : texts) KVASIR_CHECK(!text.empty());
  return automaton(automaton_without({texts.begin(), texts.end()}));
}

Expr Builder::automaton(ByteAutomaton automaton) {
  std::size_t bytes = 0;
  for (const ByteAutomaton::State& state : automaton.states) bytes += sizeof(state) + state.edges.size() * 8;
  automata_.push_back(std::make_shared<const ByteAutomaton>(std::move(automaton)));
  return add({Node::Kind::kAutomaton, static_cast<std::uint32_t>(automata_.size() - 1)}, bytes);
}

Rule Builder::declare(std::string_view name) {
  rules_.push_back({std::string(name.substr(0, 200)), 1, false});
  if (rules_.size() > kMostNodes) failure_ = exhausted("the grammar has too many rules; make it simpler");
  return {static_cast<std::uint32_t>(rules_.size() - 1)};
}

void Builder::define(Rule rule, Expr body) {
  KVASIR_CHECK(!rules_[rule.index].defined);
  rules_[rule.index].body = body.index;
  rules_[rule.index].defined = true;
}

Expr Builder::required(Expr part, Status otherwise) {
  const Rule rule = declare("a part of the grammar");
  define(rule, part);
  requirements_.push_back({rule, std::move(otherwise)});
  return call(rule);
}

Expr Builder::call(Rule rule) {
  return add({Node::Kind::kCall, rule.index});
}

}  // namespace kvasir::grammar
