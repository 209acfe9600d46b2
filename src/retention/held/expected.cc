#include <algorithm>

#include "base/status.h"
#include "retention/held/expected_attention.h"
#include "retention/held/summed_queries.h"
#include "retention/projected_values.h"

namespace kvasir {
namespace {

constexpr PolicyOption kExpectedOptions[] = {
    kHeldBudgetOption,
    {"sinks", "4", "0 to 2^40",
     "first tokens of the text, never dropped; counted in budget; their queries do not count"},
    {"recent", "0", "0 to 2^40", "most recent tokens, never dropped; counted in budget"},
    {"future", "512", "1 to 2^20", "positions behind the text over which the queries to come are averaged"},
    {"spread", "on", "on or off", "whether the covariance of queries counts, or their mean alone"},
    {"norm", "on", "on, off or wo",
     "on: a token's weight is multiplied by the norm of its value; wo: half of the budget goes to the highest weights, "
     "the other half to the highest products of weight and ||Wo v||"},
    {"epsilon", "0", "0 to 1", "added to a token's weight before it meets a norm"},
    kHeldEveryOption,
    kPromptOption,
    kPosOption,
    kProtectOption,
};

enum class ValueNorm { kOff, kOwn, kProjected };

struct ExpectedOptions {
  std::int64_t future = 512;
  bool spread = true;
  ValueNorm norm = ValueNorm::kOwn;
  double epsilon = 0;
};

class ExpectedPolicy final : public SummedQueriesPolicy {
 public:
  ExpectedPolicy(Traits traits, const HeldScoredOptions& held, const ExpectedOptions& options)
      : SummedQueriesPolicy(std::move(traits), held), options_(options) {}
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<ExpectedPolicy>(*this); }

 private:
  bool projects_values() const override { return options_.norm == ValueNorm::kProjected; }

  void score_held(int table, HeldKv& kv, std::span<double> scores, std::int64_t excess) override {
    const std::size_t first = std::min(static_cast<std::size_t>(rule().sinks), scores.size() - 1);
    ExpectedAttention{layout(), queries(), options_.future, options_.spread}.weigh(table, kv, first, {}, scores);
    if (options_.norm == ValueNorm::kOff) return;
    if (options_.norm == ValueNorm::kProjected) return weigh_by_projected_values(kv, scores, excess);
    std::vector<double> norms;
    kv.visit(HeldKv::Sides::kValues, [&](const HeldKv::Block& block) {
      norms.resize(static_cast<std::size_t>(block.kv.rows));
      norms_of(block.kv.values, norms);
      for (std::size_t row = 0; row < norms.size(); ++row) {
        double& score = scores[static_cast<std::size_t>(block.first) + row];
        score = (score + options_.epsilon) * norms[row];
      }
    });
  }

  void weigh_by_projected_values(HeldKv& kv, std::span<double> scores, std::int64_t excess) const {
    std::vector<double> norms(scores.size());
    kv.projected_norms(norms);
    const auto first = static_cast<std::size_t>(std::min(rule().sinks, std::ssize(scores)));
    const std::int64_t ranked = std::ssize(scores) - rule().sinks - rule().recent;
    if (ranked <= 0) return;
    const std::span<double> among = scores.subspan(first, static_cast<std::size_t>(ranked));
    for (double& score : among) score += options_.epsilon;
    weigh_by_projection(among, std::span(norms).subspan(first, among.size()),
                        certain_by_score(std::ssize(scores) - excess, rule().sinks + rule().recent));
  }

  std::uint64_t held_scratch_bytes(const TableLayout& layout, std::int64_t tokens) const override {
    return ExpectedAttention::bytes(layout, tokens) +
           (projects_values() ? static_cast<std::uint64_t>(tokens) * sizeof(double) : 0);
  }

  ExpectedOptions options_;
};

Result<std::unique_ptr<RetentionPolicy>> make_expected(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const HeldScoredOptions held, HeldScoredOptions::read(given));
  ExpectedOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.future, given.get_int("future", 1, std::int64_t{1} << 20));
  KVASIR_ASSIGN_OR_RETURN(options.epsilon, given.get_double("epsilon", 0, 1));
  KVASIR_ASSIGN_OR_RETURN(options.spread, get_switch(given, "spread"));
  constexpr std::string_view kNorms[] = {"off", "on", "wo"};
  KVASIR_ASSIGN_OR_RETURN(const std::string norm, given.get_choice("norm", kNorms));
  options.norm = norm == "off" ? ValueNorm::kOff : norm == "on" ? ValueNorm::kOwn : ValueNorm::kProjected;
  KVASIR_ASSIGN_OR_RETURN(const ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(given, {"budget"}));
  return {std::make_unique<ExpectedPolicy>(traits, held, options)};
}

}  // namespace

const PolicyInfo kExpectedPolicy{
    .name = "expected",
    .summary = "the tokens that queries to come may attend to, by the mean and the covariance of those so far",
    .formula =
        "logit = scale * m . k + scale^2 / 2 * k . S k, with m and S turned to the positions to come; score = (mean "
        "over heads of the softmax + epsilon) * |v|; keep sinks, the last recent and the highest scores, budget in all",
    .reference = "Expected Attention, Devoto et al., arXiv 2510.00636",
    .options = kExpectedOptions,
    .acts = "when a prompt ends, or each of its chunks, and every so many tokens written, for each KV head",
    .make = make_expected,
};

}  // namespace kvasir
