#include "retention/scored.h"

#include "base/status.h"

namespace kvasir {

Result<KeepRule> KeepRule::read(const PolicySpec& spec) {
  KeepRule rule;
  KVASIR_ASSIGN_OR_RETURN(rule.budget, spec.get_budget("budget", kMostTokens));
  if (spec.accepts("sinks")) {
    KVASIR_ASSIGN_OR_RETURN(rule.sinks, spec.get_int("sinks", 0, kMostTokens));
  }
  if (spec.accepts("recent")) {
    KVASIR_ASSIGN_OR_RETURN(rule.recent, spec.get_int("recent", 0, kMostTokens));
  }
  if (spec.accepts("every")) {
    KVASIR_ASSIGN_OR_RETURN(rule.every, spec.get_int("every", 0, kMostTokens));
  }
  if (!rule.budget.is_share() && rule.sinks + rule.recent > rule.budget.tokens)
    return invalid_argument("policy '{}': sinks={} and recent={} together are above budget={}; lower them", spec.name(),
                            rule.sinks, rule.recent, rule.budget.tokens);
  return rule;
}

void KeepRule::drop_excess(TokenTable& table, std::int64_t seen, std::span<const double> scores) const {
  const std::int64_t held = table.size();
  const std::int64_t excess = this->excess(held, seen);
  if (excess > 0) table.drop_lowest(excess, sinks, held - recent, scores);
}

void ScoredPolicy::begin(const TableLayout& layout) {
  layout_ = layout;
  tables_.assign(static_cast<std::size_t>(layout.tables()), TokenTable(traits_.columns));
}

void ScoredPolicy::score(TokenTable& table, const Step&, std::span<const double> mass) {
  double* scores = table.values().data();
  for (std::size_t i = 0; i < mass.size(); ++i) scores[i] += mass[i];
}

bool ScoredPolicy::may_prune(const Step& step) const {
  switch (traits_.acts) {
    case Acts::kAlways: return true;
    case Acts::kAtPromptEnd: return step.ends_prompt();
    case Acts::kWhileGenerating: return !step.pass.prompt;
  }
  return false;
}

void ScoredPolicy::insert(TokenTable& table, const Step& step) {
  table.insert_next();
  if (may_prune(step)) prune(table, step);
  if (step.pass.rows > 1) table.note_held();
}

void ScoredPolicy::observe(const PolicyPass& pass, int table, int row, std::span<const double> mass) {
  TokenTable& tokens = this->table(table);
  tokens.enter(pass, traits_.by_row);
  const Step step{pass, table, row};
  if (!traits_.by_row) {
    KVASIR_CHECK(static_cast<std::int64_t>(mass.size()) == tokens.size() + row + 1);
    return score(tokens, step, mass);
  }
  // Tokens that this pass has dropped already are in the row, but no longer in the table.
  const std::int64_t count = tokens.size() + 1;
  KVASIR_CHECK(tokens.place_in_pass(count - 1) == static_cast<std::int64_t>(mass.size()) - 1);
  const std::span<double> scores = tokens.values();
  for (std::int64_t i = 0; i < count; ++i)
    scores[static_cast<std::size_t>(i)] = mass[static_cast<std::size_t>(tokens.place_in_pass(i))];
  insert(tokens, step);
}

void ScoredPolicy::end_pass(const PolicyPass& pass, int table, KeepPlan& plan) {
  TokenTable& tokens = this->table(table);
  tokens.enter(pass, false);
  if (!traits_.by_row)
    for (int row = 0; row < pass.rows; ++row) insert(tokens, {pass, table, row});
  KVASIR_CHECK(tokens.size() == tokens.all());
  tokens.hand_over(plan.drop);
  tokens.hand_over_held(plan.held);
}

}  // namespace kvasir
