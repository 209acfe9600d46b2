#include "base/status.h"
#include "retention/scored.h"

namespace kvasir {
namespace {

constexpr PolicyOption kRandomOptions[] = {
    {"budget", "1024", kBudgetRange, "tokens kept, or their share of the tokens seen, rounded up"},
    {"sinks", "0", "0 to 2^40", "first tokens of the text, never dropped; counted in budget"},
    {"recent", "0", "0 to 2^40", "most recent tokens, never dropped; counted in budget"},
    {"seed", "1", "0 to 2^62", "of the draw; each layer (or head) has its own"},
    kEveryOption,
    kPosOption,
    kHeadsOption,
    kProtectOption,
};

class RandomPolicy final : public ScoredPolicy {
 public:
  RandomPolicy(Traits traits, const KeepRule& rule, std::int64_t seed)
      : ScoredPolicy(std::move(traits)), rule_(rule), seed_(seed) {}

  std::optional<std::int64_t> bound() const override { return rule_.bound(); }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<RandomPolicy>(*this); }

  void begin(const TableLayout& layout) override {
    ScoredPolicy::begin(layout);
    draws_.clear();
    draws_.reserve(static_cast<std::size_t>(layout.tables()));
    for (int table = 0; table < layout.tables(); ++table) draws_.push_back(draws_of_table(seed_, table));
  }

 private:
  std::int64_t most_kept(std::int64_t seen) const override { return rule_.most_kept(seen); }
  std::int64_t undropped(std::int64_t n) const override { return rule_.undropped(n); }
  std::uint64_t table_state_bytes(const TableLayout&) const override { return sizeof(SplitMix); }
  void save_table(int table, ByteWriter& out) const override {
    out.put(draws_[static_cast<std::size_t>(table)].state());
  }
  bool restore_table(int table, ByteReader& in) override {
    std::uint64_t state = 0;
    if (!in.get(state)) return false;
    draws_[static_cast<std::size_t>(table)] = SplitMix(state);
    return true;
  }

  void prune(ScoreList& list, const Step& step) override {
    const std::int64_t held = list.size();
    const std::int64_t last = held - rule_.recent;
    std::int64_t candidates = last - rule_.sinks;
    std::int64_t go = std::min(rule_.excess(held, step.seen()), candidates);
    if (go <= 0) return;
    SplitMix& draw = draws_[static_cast<std::size_t>(step.table)];
    if (go == 1) return list.drop(rule_.sinks + draw.below(candidates));
    // Selection sampling: each in turn goes with the share of those that are still to go.
    list.drop_if([&](std::int64_t i) {
      if (i < rule_.sinks || i >= last) return false;
      const bool goes = draw.below(candidates--) < go;
      go -= goes ? 1 : 0;
      return goes;
    });
  }

  KeepRule rule_;
  std::int64_t seed_;
  std::vector<SplitMix> draws_;
};

Result<std::unique_ptr<RetentionPolicy>> make_random(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const KeepRule rule, KeepRule::read(given));
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t seed, given.get_int("seed", 0, std::int64_t{1} << 62));
  KVASIR_ASSIGN_OR_RETURN(ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(given, {"budget", "seed"}));
  traits.values_per_token = 0;
  return {std::make_unique<RandomPolicy>(std::move(traits), rule, seed)};
}

}  // namespace

const PolicyInfo kRandomPolicy{
    .name = "random",
    .summary = "drops unprotected tokens chosen at random: the baseline that a policy must beat",
    .formula = "when over budget: drop tokens drawn uniformly from those that are neither sinks nor recent",
    .reference = "a baseline of this project",
    .options = kRandomOptions,
    .acts = "after every token, for each layer",
    .make = make_random,
};

}  // namespace kvasir
