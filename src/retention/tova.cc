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

class TovaPolicy final : public ScoredPolicy {
 public:
  TovaPolicy(Traits traits, const KeepRule& rule) : ScoredPolicy(std::move(traits)), rule_(rule) {}

  std::optional<std::int64_t> bound() const override { return rule_.bound(); }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<TovaPolicy>(*this); }

 private:
  std::int64_t most_kept(std::int64_t seen) const override { return rule_.most_kept(seen); }
  void prune(ScoreList& list, const Step& step) override { rule_.drop_excess(list, step.seen(), list.values()); }

  KeepRule rule_;
};

Result<std::unique_ptr<RetentionPolicy>> make_tova(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const KeepRule rule, KeepRule::read(given));
  ScoredPolicy::Traits traits;
  KVASIR_ASSIGN_OR_RETURN(traits.positions, given.get_positions());
  KVASIR_ASSIGN_OR_RETURN(traits.scope, given.get_scope());
  traits.reduction = MassReduction::kMean;
  traits.by_row = true;
  traits.spec = given.canonical({"budget"});
  return {std::make_unique<TovaPolicy>(std::move(traits), rule)};
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
    .evaluation_only = false,
    .make = make_tova,
};

}  // namespace kvasir
