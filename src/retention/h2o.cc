#include "base/status.h"
#include "retention/scored.h"

namespace kvasir {
namespace {

constexpr PolicyOption kOptions[] = {
    {"budget", "1024", kBudgetRange, "tokens kept, or their share of the tokens seen, rounded up"},
    {"recent", "512", "0 to 2^40", "most recent tokens, never dropped; counted in budget"},
    {"sinks", "0", "0 to 2^40", "first tokens of the text, never dropped; counted in budget"},
    kEveryOption,
    kPosOption,
    kHeadsOption,
};

class H2oPolicy final : public ScoredPolicy {
 public:
  H2oPolicy(Traits traits, const KeepRule& rule) : ScoredPolicy(std::move(traits)), rule_(rule) {}

  std::optional<std::int64_t> bound() const override { return rule_.bound(); }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<H2oPolicy>(*this); }

 private:
  std::int64_t most_kept(std::int64_t seen) const override { return rule_.most_kept(seen); }
  void prune(ScoreList& list, const Step& step) override { rule_.drop_excess(list, step.seen(), list.values()); }

  KeepRule rule_;
};

Result<std::unique_ptr<RetentionPolicy>> make(const PolicySpec& spec) {
  KVASIR_ASSIGN_OR_RETURN(const KeepRule rule, KeepRule::read(spec));
  ScoredPolicy::Traits traits;
  KVASIR_ASSIGN_OR_RETURN(traits.positions, spec.get_positions());
  KVASIR_ASSIGN_OR_RETURN(traits.scope, spec.get_scope());
  traits.reduction = MassReduction::kSum;
  traits.spec = spec.canonical({"budget", "recent"});
  return {std::make_unique<H2oPolicy>(std::move(traits), rule)};
}

}  // namespace

const PolicyInfo kH2oPolicy{
    .name = "h2o",
    .summary = "heavy hitters: the recent tokens, and those that drew the most attention since they came",
    .formula =
        "score += sum over heads of mass, each step; keep sinks, the last recent and the highest scores, budget in all",
    .reference = "H2O, Zhang et al., arXiv 2306.14048, algorithm 1",
    .options = kOptions,
    .acts = "after every token, for each layer",
    .evaluation_only = false,
    .make = make,
};

}  // namespace kvasir
