#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/status.h"
#include "retention/prompt_window.h"

namespace kvasir {
namespace {

constexpr PolicyOption kVaseOptions[] = {
    {"budget", "1024", kBudgetRange, "tokens kept per head, or their share of the tokens seen, rounded up"},
    {"recent", "64", "1 to 2^40", "most recent tokens, never dropped; counted in budget"},
    {"sinks", "4", "0 to 2^40", "first tokens of the text, never dropped; counted in budget"},
    {"wide", "25%", "0 to 2^40, or above 0% to 100%",
     "tokens kept for the range of their value, sinks among them; their share is of budget"},
    {"draw", "on", "on or off", "draw the others by their attention, or keep those with the most"},
    {"kernel", "5", "1 to 1023, odd", "width of the pooling of attention"},
    {"seed", "1", "0 to 2^62", "of the draws; each head has its own"},
    {"every", "64", "1 to 2^40", "prune when this many tokens are above the budget; so many queries are observed"},
    kBlocksOption,
    kPosOption,
    kProtectOption,
};

struct VaseOptions {
  KeepRule rule;
  Budget wide;
  bool draw = true;
  std::int64_t kernel = 5;
  std::int64_t seed = 1;
  bool blocks = false;  // each chunk of a prompt is pruned
};

class VasePolicy final : public ScoredPolicy, public KnowsPromptEnd {
 public:
  VasePolicy(Traits traits, const VaseOptions& options) : ScoredPolicy(std::move(traits)), options_(options) {}

  std::optional<std::int64_t> bound() const override { return options_.blocks ? options_.rule.bound() : std::nullopt; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<VasePolicy>(*this); }
  bool wants(const PolicyChunk& chunk, int row, int) const override {
    const Step step{chunk, 0, row};
    return !chunk.prompt || block_end(step) - step.token() <= options_.rule.every;
  }
  Result<std::unique_ptr<RetentionPolicy>> as_part(PolicyPart part) const override {
    KVASIR_RETURN_IF_ERROR(check_blocks(options_.blocks, part, traits().spec));
    return ScoredPolicy::as_part(part);
  }

  // The last queries of a prompt are observed.
  std::int64_t shared_prefix(std::int64_t n) const override {
    return std::max<std::int64_t>(n - options_.rule.every, 0);
  }

  void begin(const TableLayout& layout) override {
    ScoredPolicy::begin(layout);
    tables_.assign(static_cast<std::size_t>(layout.tables()), {});
    for (int table = 0; table < layout.tables(); ++table)
      tables_[static_cast<std::size_t>(table)].draws = draws_of_table(options_.seed, table).state();
  }

 private:
  static constexpr int kMass = 0;   // column: of the queries observed since the last prune, and in the prompt's end
  static constexpr int kRange = 1;  // column: the largest less the smallest number of the value

  Capabilities capabilities() const override {
    return ScoredPolicy::capabilities().with<KnowsPromptEnd>(options_.blocks ? nullptr : this);
  }

  struct Table {
    TokenIndex block_end = 0;  // of the prompt, or block of one, whose last queries were observed last
    std::uint64_t draws = 0;   // state of the generator
  };

  // Returns the index behind the part of a prompt that is pruned together.
  TokenIndex block_end(const Step& step) const { return options_.blocks ? step.chunk.end() : step.prompt_end(); }

  void score(ScoreList& list, const Step& step, std::span<const double> mass) override {
    if (!wants(step.chunk, step.row, 0)) return;
    Table& table = tables_[static_cast<std::size_t>(step.table)];
    if (step.chunk.prompt && table.block_end != block_end(step)) {
      table.block_end = block_end(step);
      std::ranges::fill(list.values(kMass), 0.0);
    }
    ScoredPolicy::score(list, step, mass);
  }

  void score_kv(ScoreList& list, std::int64_t place, const Step& step, const ChunkKv& kv) override {
    const auto [least, most] = std::ranges::minmax(kv.value(0, step.row));
    list.values(kRange)[static_cast<std::size_t>(place)] = double{most} - double{least};
  }

  void prune(ScoreList& list, const Step& step) override {
    if (step.chunk.prompt && step.token() + 1 < block_end(step)) return;
    const KeepRule rule = step.chunk.prompt ? options_.rule.at_once() : options_.rule;
    const std::int64_t excess = rule.excess(list.size(), step.seen());
    if (excess <= 0) return;
    const std::int64_t last = list.size() - rule.recent;
    list.drop_lowest(excess, rule.sinks, last, ranks(list, step, last));
    std::ranges::fill(list.values(kMass), 0.0);
  }

  // Returns a number for each token before `last`, of which the highest stay: infinity where the value's range keeps
  // it.
  std::vector<double> ranks(const ScoreList& list, const Step& step, std::int64_t last) {
    const auto count = static_cast<std::size_t>(last);
    std::vector<double> ranks = pooled(list.values(kMass).first(count), options_.kernel, false);
    if (options_.draw) {
      // Drawing without replacement in proportion to weights keeps the largest of log weight + Gumbel noise.
      Table& table = tables_[static_cast<std::size_t>(step.table)];
      SplitMix draws(table.draws);
      for (double& rank : ranks) {
        const double uniform = (static_cast<double>(draws.next() >> 11) + 0.5) * 0x1p-53;
        rank = std::log(rank) - std::log(-std::log(uniform));
      }
      table.draws = draws.state();
    }
    const std::int64_t sinks = std::min(options_.rule.sinks, last);
    const std::int64_t wide =
        options_.wide.is_share() ? options_.wide.at(options_.rule.budget.at(step.seen())) : options_.wide.tokens;
    const std::int64_t kept = std::clamp<std::int64_t>(wide - sinks, 0, last - sinks);
    std::vector<std::size_t> order(count - static_cast<std::size_t>(sinks));
    std::iota(order.begin(), order.end(), static_cast<std::size_t>(sinks));
    const auto ranges = list.values(kRange);
    // Of equal ranges the younger token stays.
    std::ranges::stable_sort(order.rbegin(), order.rend(), std::greater(), [&](std::size_t i) { return ranges[i]; });
    for (std::int64_t i = 0; i < kept; ++i) ranks[*(order.rbegin() + i)] = std::numeric_limits<double>::infinity();
    return ranks;
  }

  std::uint64_t table_state_bytes(const TableLayout&) const override { return sizeof(Table); }
  void save_table(int table, ByteWriter& out) const override {
    const Table& own = tables_[static_cast<std::size_t>(table)];
    out.put(own.block_end);
    out.put(own.draws);
  }
  bool restore_table(int table, ByteReader& in) override {
    Table& own = tables_[static_cast<std::size_t>(table)];
    return in.get(own.block_end) && in.get(own.draws) && own.block_end >= 0;
  }
  std::int64_t most_kept(std::int64_t seen) const override {
    return options_.blocks ? options_.rule.most_kept(seen) : seen;
  }

  VaseOptions options_;
  std::vector<Table> tables_;
};

Result<std::unique_ptr<RetentionPolicy>> make_vase(const PolicyOptions& given) {
  VaseOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.rule, KeepRule::read(given));
  for (const char* const key : {"every", "recent"}) KVASIR_RETURN_IF_ERROR(given.get_int(key, 1, kMostTokens).status());
  if (given.value("wide") != "0") {
    KVASIR_ASSIGN_OR_RETURN(options.wide, given.get_budget("wide", kMostTokens));
  }
  KVASIR_ASSIGN_OR_RETURN(options.kernel, get_kernel(given));
  KVASIR_ASSIGN_OR_RETURN(options.seed, given.get_int("seed", 0, std::int64_t{1} << 62));
  KVASIR_ASSIGN_OR_RETURN(options.draw, get_switch(given, "draw"));
  KVASIR_ASSIGN_OR_RETURN(options.blocks, get_blocks(given));
  KVASIR_ASSIGN_OR_RETURN(ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(given, {"budget"}));
  traits.reduction = MassReduction::kMean;
  traits.scope = PolicyScope::kHead;
  traits.values_per_token = 2;
  traits.values = true;
  traits.whole = !options.blocks;
  return {std::make_unique<VasePolicy>(std::move(traits), options)};
}

}  // namespace

const PolicyInfo kVasePolicy{
    .name = "vase",
    .summary = "the tokens whose values range widest, and others drawn by their attention: for long reasoning",
    .formula =
        "keep sinks, the last recent, the wide tokens of largest max(v) - min(v), and others drawn without replacement "
        "in proportion to the pooled mass of the last every queries, budget in all",
    .reference = "VaSE, arXiv 2606.03928",
    .options = kVaseOptions,
    .acts = "at the end of a prompt, or of each of its chunks, and every so many tokens written, for each KV head",
    .make = make_vase,
};

}  // namespace kvasir
