#include "base/status.h"
#include "retention/projected_values.h"
#include "retention/scored.h"

namespace kvasir {
namespace {

constexpr PolicyOption kH2oOptions[] = {
    {"budget", "1024", kBudgetRange, "tokens kept, or their share of the tokens seen, rounded up"},
    {"recent", "auto", "auto or 0 to 2^40",
     "most recent tokens, never dropped; counted in budget; auto: half of it, or 512 where it is a percentage"},
    {"sinks", "0", "0 to 2^40", "first tokens of the text, never dropped; counted in budget"},
    {"agg", "sum", "sum or max",
     "a token's score: the sum of all that it drew, or the most that any query head gave it"},
    kValueOption,
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

struct H2oOptions {
  KeepRule rule;
  bool maximum = false;    // a score is the most that any query head gave, not the sum
  bool projected = false;  // half of the budget goes by scores alone, the rest by scores and projected values
};

class H2oPolicy final : public ScoredPolicy, public ReadsHeldKv {
 public:
  H2oPolicy(const Traits& traits, const H2oOptions& options) : ScoredPolicy(traits), options_(options) {}
  std::optional<std::int64_t> bound() const override { return options_.rule.bound(); }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<H2oPolicy>(*this); }

  void begin(const TableLayout& layout) override {
    ScoredPolicy::begin(layout);
    known_.assign(options_.projected ? static_cast<std::size_t>(layout.tables()) : 0, 0);
  }

  bool projects_values() const override { return options_.projected; }
  // A token can be dropped once it is not among the most recent ones. Norms are found for all tokens at once, so most
  // prunes ask for none.
  bool wants_held(const PolicyChunk& chunk, int table) const override {
    return options_.projected && acts({chunk, table, chunk.rows - 1}) &&
           options_.rule.excess(list(table).size() + chunk.rows, chunk.first + 1) > 0 &&
           chunk.end() - options_.rule.recent > known_[static_cast<std::size_t>(table)];
  }
  void read_held(const PolicyChunk& chunk, int table, HeldKv& kv) override {
    ScoreList& list = this->list(table);
    enter(list, chunk);
    KVASIR_CHECK(list.all() == kv.tokens());
    kv.projected_norms(list.values(kNorm).first(static_cast<std::size_t>(list.all())));
    known_[static_cast<std::size_t>(table)] = chunk.end();
  }

 private:
  static constexpr int kNorm = 1;  // column: the norm of a token's projected value

  Capabilities capabilities() const override {
    return ScoredPolicy::capabilities().with<ReadsHeldKv>(options_.projected ? this : nullptr);
  }
  std::int64_t most_kept(std::int64_t seen) const override { return options_.rule.most_kept(seen); }

  void score(ScoreList& list, const Step& step, std::span<const double> mass) override {
    if (!options_.maximum) return ScoredPolicy::score(list, step, mass);
    raise_to(list.values(), mass);
  }

  void prune(ScoreList& list, const Step& step) override {
    const KeepRule& rule = options_.rule;
    if (!options_.projected) return rule.drop_excess(list, step.seen(), list.values());
    const std::int64_t excess = rule.excess(list.size(), step.seen());
    if (excess == 0) return;
    const auto first = static_cast<std::size_t>(rule.sinks);
    const auto ranked = static_cast<std::size_t>(list.size() - rule.sinks - rule.recent);
    std::vector<double> scores(list.values().begin(), list.values().begin() + list.size());
    weigh_by_projection(std::span(scores).subspan(first, ranked), list.values(kNorm).subspan(first, ranked),
                        certain_by_score(list.size() - excess, rule.sinks + rule.recent));
    rule.drop_excess(list, step.seen(), scores);
  }

  std::uint64_t table_state_bytes(const TableLayout&) const override {
    return options_.projected ? sizeof(TokenIndex) : 0;
  }
  void save_table(int table, ByteWriter& out) const override {
    if (options_.projected) out.put(known_[static_cast<std::size_t>(table)]);
  }
  bool restore_table(int table, ByteReader& in) override {
    if (!options_.projected) return true;
    TokenIndex& known = known_[static_cast<std::size_t>(table)];
    return in.get(known) && known >= 0 && known <= seen();
  }

  H2oOptions options_;
  std::vector<TokenIndex> known_;  // of each table: norms of tokens before this one are known
};

Result<std::unique_ptr<RetentionPolicy>> make_h2o(const PolicyOptions& given) {
  PolicyOptions filled = given;
  KVASIR_RETURN_IF_ERROR(fill_in_recent(filled));
  H2oOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.rule, KeepRule::read(filled));
  constexpr std::string_view kAggregations[] = {"sum", "max"};
  KVASIR_ASSIGN_OR_RETURN(const std::string aggregation, filled.get_choice("agg", kAggregations));
  options.maximum = aggregation == "max";
  KVASIR_ASSIGN_OR_RETURN(options.projected, projects_values(filled));
  KVASIR_ASSIGN_OR_RETURN(ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(filled, {"budget", "recent"}));
  traits.reduction = options.maximum ? MassReduction::kMax : MassReduction::kSum;
  traits.values_per_token = options.projected ? 2 : 1;
  return {std::make_unique<H2oPolicy>(traits, options)};
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
