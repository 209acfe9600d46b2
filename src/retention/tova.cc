#include "base/status.h"
#include "retention/scored.h"

namespace kvasir {
namespace {

constexpr PolicyOption kTovaOptions[] = {
    {"budget", "1024", kBudgetRange, "tokens kept, or their share of the tokens seen, rounded up"},
    kEveryOption,
    kPosOption,
    kHeadsOption,
    kProtectOption,
};

Result<std::unique_ptr<RetentionPolicy>> make_tova(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const KeepRule rule, KeepRule::read(given));
  KVASIR_ASSIGN_OR_RETURN(ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(given, {"budget"}));
  traits.reduction = MassReduction::kMean;
  traits.by_row = true;
  return {std::make_unique<KeepHighestPolicy>(traits, rule)};
}

}  // namespace

const PolicyInfo kTovaPolicy{
    .name = "tova",
    .summary = "the tokens that the current token attends to most; nothing else protects a token",
    .formula =
        "after a step with every or more tokens above budget: keep the budget tokens of largest head-mean mass in "
        "the current step",
    .reference = "TOVA, Oren et al., arXiv 2401.06104",
    .options = kTovaOptions,
    .acts = "after every token, for each layer",
    .make = make_tova,
};

}  // namespace kvasir
