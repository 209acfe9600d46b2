#include <array>
#include <cmath>

#include "base/status.h"
#include "retention/scored.h"

namespace kvasir {
namespace {

constexpr int kMostSubCaches = 16;

constexpr PolicyOption kCascadeOptions[] = {
    {"size", "2048", "1 to 2^40, a multiple of n", "tokens of all sub-caches together"},
    {"n", "4", "1 to 16", "sub-caches (N)"},
    {"sinks", "4", "0 to 2^40", "first tokens of the text, never dropped; in addition to size"},
    {"accept", "2", "1 to 1024", "sub-cache i takes in one of accept^i tokens"},
    {"gamma", "auto", "auto, or 0 up to below 1",
     "decay of the average of a token's mass; auto: exp(-n * ln(100) / size)"},
    {"reduce", "mean", "mean, sum, max or median", "over the heads of a decision"},
    {"select", "on", "on or off", "off: a sub-cache that does not accept drops what it is offered (ablation)"},
    kHeadsOption,
    kProtectBesideOption,
};

struct CascadeOptions {
  std::int64_t sinks = 0;
  std::int64_t capacity = 0;  // of one sub-cache
  int count = 0;              // sub-caches
  double gamma = 0;
  bool select = true;
  std::array<std::int64_t, kMostSubCaches> period{};  // sub-cache i accepts every period[i] tokens
};

// The retained tokens in order of index are the sinks, then the last sub-cache, …, then sub-cache 0: a sub-cache passes
// on its oldest token, which becomes the youngest of the next. So the state is one number per sub-cache, and a token is
// passed on by moving a boundary.
class CascadePolicy final : public ScoredPolicy {
 public:
  CascadePolicy(Traits traits, const CascadeOptions& options) : ScoredPolicy(std::move(traits)), options_(options) {}

  std::optional<std::int64_t> bound() const override { return options_.sinks + options_.capacity * options_.count + 1; }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<CascadePolicy>(*this); }
  Result<std::unique_ptr<RetentionPolicy>> as_part(PolicyPart) const override {
    return invalid_argument(
        "policy '{}' cannot be part of a composition: every token has to pass through it; use it alone", traits().spec);
  }

  void begin(const TableLayout& layout) override {
    ScoredPolicy::begin(layout);
    states_.assign(static_cast<std::size_t>(layout.tables()), {});
  }

  void retained(int table, int run, std::vector<IndexRange>& ranges) const override {
    const State& state = states_[static_cast<std::size_t>(table)];
    const std::span<const TokenIndex> tokens = list(table).tokens();
    std::int64_t begin = state.sinks;
    for (int i = options_.count - 1; i > run; --i) begin += state.held[static_cast<std::size_t>(i)];
    if (run == 0) add_ranges(tokens.first(static_cast<std::size_t>(state.sinks)), ranges);
    if (run < options_.count)
      add_ranges(tokens.subspan(static_cast<std::size_t>(begin),
                                static_cast<std::size_t>(state.held[static_cast<std::size_t>(run)])),
                 ranges);
  }

  void end_chunk(const PolicyChunk& chunk, int table, KeepPlan& plan) override {
    ScoredPolicy::end_chunk(chunk, table, plan);
    ScoreList& list = this->list(table);
    const State& state = states_[static_cast<std::size_t>(table)];
    const auto runs = list.values(kRun);
    std::int64_t begin = state.sinks;
    for (int i = options_.count - 1; i > 0; --i) {
      // The tokens that came during the chunk are the youngest.
      const std::int64_t end = begin + state.held[static_cast<std::size_t>(i)];
      std::int64_t first = end;
      while (first > begin && runs[static_cast<std::size_t>(first) - 1] != i) --first;
      for (auto k = static_cast<std::size_t>(first); k < static_cast<std::size_t>(end); ++k) {
        plan.moves.push_back({list.tokens()[k], i});
        runs[k] = i;
      }
      begin = end;
    }
  }

 private:
  static constexpr int kMu = 0;   // column: average of the mass
  static constexpr int kRun = 1;  // column: the run that holds the token by the plans so far

  struct State {
    std::int64_t sinks = 0;                           // held so far
    std::array<std::int64_t, kMostSubCaches> held{};  // by each sub-cache
    std::int64_t clock = 0;                           // tokens offered
  };

  std::uint64_t table_state_bytes(const TableLayout&) const override { return sizeof(State); }
  void save_table(int table, ByteWriter& out) const override {
    const State& state = states_[static_cast<std::size_t>(table)];
    out.put(state.sinks);
    for (int i = 0; i < options_.count; ++i) out.put(state.held[static_cast<std::size_t>(i)]);
  }
  bool restore_table(int table, ByteReader& in) override;

  void score(ScoreList& list, const Step&, std::span<const double> mass) override {
    const double keep = options_.gamma, take = 1 - options_.gamma;
    double* mu = list.values(kMu).data();
    for (std::size_t i = 0; i < mass.size(); ++i) mu[i] = keep * mu[i] + take * mass[i];
  }

  void prune(ScoreList& list, const Step& step) override {
    State& state = states_[static_cast<std::size_t>(step.table)];
    if (state.sinks < options_.sinks) {
      ++state.sinks;
      return;
    }
    offer(list, state, state.clock++);
  }

  // The newest token goes down the cascade. `x` is the index of what is being offered: always right behind the tokens
  // of the sub-cache that it is offered to.
  void offer(ScoreList& list, State& state, std::int64_t clock) const {
    const auto mu = list.values(kMu);
    std::int64_t x = list.size() - 1;
    for (int i = 0; i < options_.count; ++i) {
      std::int64_t& held = state.held[static_cast<std::size_t>(i)];
      const bool accepts = clock % options_.period[static_cast<std::size_t>(i)] == 0;
      if (held == 0 || (accepts && held < options_.capacity)) {
        ++held;
        return;
      }
      if (!accepts) {
        const bool better = options_.select && mu[static_cast<std::size_t>(x)] > mu[static_cast<std::size_t>(x) - 1];
        return list.drop(better ? x - 1 : x);
      }
      x -= held;  // it stays, and the oldest is offered to the next
    }
    list.drop(x);
  }

  CascadeOptions options_;
  std::vector<State> states_;
};

// The clock and the column of runs follow from the rest.
bool CascadePolicy::restore_table(int table, ByteReader& in) {
  State& state = states_[static_cast<std::size_t>(table)];
  ScoreList& list = this->list(table);
  if (!in.get(state.sinks) || state.sinks < 0 || state.sinks > std::min(options_.sinks, list.size())) return false;
  state.clock = list.next_token() - state.sinks;
  if (state.clock > 0 && state.sinks < options_.sinks) return false;
  std::int64_t left = list.size() - state.sinks;
  std::int64_t end = list.size();
  for (int i = 0; i < options_.count; ++i) {
    std::int64_t& held = state.held[static_cast<std::size_t>(i)];
    if (!in.get(held) || held < 0 || held > std::min(options_.capacity, left)) return false;
    left -= held;
    const auto runs = list.values(kRun).subspan(static_cast<std::size_t>(end - held), static_cast<std::size_t>(held));
    std::ranges::fill(runs, static_cast<double>(i));
    end -= held;
  }
  std::ranges::fill(list.values(kRun).first(static_cast<std::size_t>(state.sinks)), 0.0);
  return left == 0;
}

Result<double> read_gamma(const PolicyOptions& given, std::int64_t n, std::int64_t size) {
  if (given.value("gamma") == "auto")
    return std::exp(-static_cast<double>(n) * std::log(100.0) / static_cast<double>(size));
  return given.get_double("gamma", 0, std::nextafter(1.0, 0.0));
}

Result<MassReduction> read_reduction(const PolicyOptions& given) {
  constexpr std::string_view kReductions[] = {"mean", "sum", "max", "median"};
  KVASIR_ASSIGN_OR_RETURN(const std::string name, given.get_choice("reduce", kReductions));
  if (name == "sum") return MassReduction::kSum;
  if (name == "max") return MassReduction::kMax;
  return name == "median" ? MassReduction::kMedian : MassReduction::kMean;
}

Result<std::unique_ptr<RetentionPolicy>> make_cascade(const PolicyOptions& given) {
  CascadeOptions options;
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t size, given.get_int("size", 1, kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t n, given.get_int("n", 1, kMostSubCaches));
  if (size % n != 0)
    return invalid_argument("policy 'cascade': n={} sub-caches cannot share size={} equally; give a multiple of {}", n,
                            size, n);
  options.count = static_cast<int>(n);
  options.capacity = size / n;
  KVASIR_ASSIGN_OR_RETURN(options.sinks, given.get_int("sinks", 0, kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t protect, given.get_protect(size));
  options.sinks = std::max(options.sinks, protect);
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t accept, given.get_int("accept", 1, 1024));
  // Periods stop growing where no stream gets to.
  options.period[0] = 1;
  for (std::size_t i = 1; i < options.period.size(); ++i)
    options.period[i] = std::min(options.period[i - 1] * accept, std::int64_t{1} << 50);
  KVASIR_ASSIGN_OR_RETURN(options.gamma, read_gamma(given, n, size));
  KVASIR_ASSIGN_OR_RETURN(options.select, get_switch(given, "select"));
  KVASIR_ASSIGN_OR_RETURN(ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(given, {"size", "n", "sinks"}));
  KVASIR_ASSIGN_OR_RETURN(traits.reduction, read_reduction(given));
  traits.positions = PositionMode::kCompact;
  traits.values_per_token = 2;
  traits.run_capacities.assign(static_cast<std::size_t>(n) - 1, options.capacity);
  return {std::make_unique<CascadePolicy>(std::move(traits), options)};
}

}  // namespace

const PolicyInfo kCascadePolicy{
    .name = "cascade",
    .summary = "sub-caches that take in ever fewer of the older tokens: a window whose far end thins out",
    .formula =
        "sub-cache i takes every accept^i-th token; in between the newer of two stays if its averaged mass is higher",
    .reference = "Cascading KV Cache, Willette et al., arXiv 2406.17808",
    .options = kCascadeOptions,
    .acts = "after every token, for each layer",
    .make = make_cascade,
};

}  // namespace kvasir
