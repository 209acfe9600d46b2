#include "base/status.h"
#include "retention/scored.h"

namespace kvasir {
namespace {

constexpr PolicyOption kH2oOptions[] = {
    {"budget", "1024", kBudgetRange, "tokens kept, or their share of the tokens seen, rounded up"},
    {"recent", "auto", "auto or 0 to 2^40",
     "most recent tokens, never dropped; counted in budget; auto: half of it, or 512 where it is a percentage"},
    {"sinks", "0", "0 to 2^40", "first tokens of the text, never dropped; counted in budget"},
    kEveryOption,
    kPosOption,
    kHeadsOption,
    kProtectOption,
};

// Replaces recent=auto by a number: at most what the sinks leave of the budget.
Status fill_in_recent(PolicyOptions& filled) {
  if (filled.value("recent") != "auto") return {};
  KVASIR_ASSIGN_OR_RETURN(const Budget budget, filled.get_budget("budget", kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t sinks, filled.get_int("sinks", 0, kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t protect, filled.get_protect(budget.tokens));
  const std::int64_t first = std::max(sinks, protect);
  const std::int64_t half = std::min(budget.tokens / 2, std::max<std::int64_t>(budget.tokens - first, 0));
  filled.set("recent", budget.is_share() ? 512 : half);
  return {};
}

Result<std::unique_ptr<RetentionPolicy>> make_h2o(const PolicyOptions& given) {
  PolicyOptions filled = given;
  KVASIR_RETURN_IF_ERROR(fill_in_recent(filled));
  KVASIR_ASSIGN_OR_RETURN(const KeepRule rule, KeepRule::read(filled));
  KVASIR_ASSIGN_OR_RETURN(ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(filled, {"budget", "recent"}));
  traits.reduction = MassReduction::kSum;
  return {std::make_unique<KeepHighestPolicy>(traits, rule)};
}

}  // namespace

const PolicyInfo kH2oPolicy{
    .name = "h2o",
    .summary = "heavy hitters: the recent tokens, and those that drew the most attention since they came",
    .formula =
        "score += sum over heads of mass, each step; keep sinks, the last recent and the highest scores, budget in all",
    .reference = "H2O, Zhang et al., arXiv 2306.14048, algorithm 1",
    .options = kH2oOptions,
    .acts = "after every token, for each layer",
    .make = make_h2o,
};

}  // namespace kvasir
