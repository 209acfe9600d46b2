#include <cmath>
#include <functional>
#include <limits>

#include "base/status.h"
#include "retention/scored.h"

namespace kvasir {
namespace {

constexpr PolicyOption kLetheOptions[] = {
    {"tau", "400", "above 1, to 10^300", "largest over smallest score at which a segment is cut off (sparse_ratio)"},
    {"recent", "0.3", "0 to 1", "share of the tokens held that is protected as recent"},
    {"sinks", "4", "0 to 2^40", "first tokens of the text, never dropped"},
    {"segments", "10", "2 to 1000", "cut points are looked for at each 1/segments of the sorted scores (D)"},
    {"gamma", "0.98", "0 to 1", "decay of a score per step"},
    {"start", "512", "1 to 2^40", "tokens held before the first prune is tried (L_evict)"},
    {"max", "-", "1 to 2^40", "bounds the tokens held: L_evict never exceeds it"},
    kPosOption,
    kHeadsOption,
    kProtectOption,
};

struct LetheOptions {
  double tau = 400;
  std::int64_t recent = 300'000;  // millionths
  std::int64_t sinks = 4;
  std::int64_t segments = 10;
  double gamma = 0.98;
  std::int64_t start = 512;
  std::optional<std::int64_t> max;

  std::int64_t recent_of(std::int64_t held) const {
    // In two parts, so that it does not overflow for any number of tokens.
    return held / Budget::kWhole * recent + held % Budget::kWhole * recent / Budget::kWhole;
  }
};

class LethePolicy final : public ScoredPolicy, public KnowsPromptEnd {
 public:
  LethePolicy(Traits traits, const LetheOptions& options) : ScoredPolicy(std::move(traits)), options_(options) {}

  // A prune is due as soon as one token more than max is held.
  std::optional<std::int64_t> bound() const override {
    return options_.max ? std::optional(*options_.max + 1) : std::nullopt;
  }
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<LethePolicy>(*this); }

  void move_prompt_end(TokenIndex end) override {
    for (State& state : states_)
      if (state.prompt_end >= 0) state.prompt_end = end;
  }

  void begin(const TableLayout& layout) override {
    ScoredPolicy::begin(layout);
    states_.assign(static_cast<std::size_t>(layout.tables()), State{.threshold = capped(options_.start)});
  }

 private:
  Capabilities capabilities() const override { return ScoredPolicy::capabilities().with<KnowsPromptEnd>(this); }

  struct State {
    std::int64_t threshold = 0;  // L_evict
    TokenIndex prompt_end = -1;  // of the prompt whose rows came last; -1: they were generated
  };

  std::uint64_t table_state_bytes(const TableLayout&) const override { return sizeof(State); }
  void save_table(int table, ByteWriter& out) const override {
    const State& state = states_[static_cast<std::size_t>(table)];
    out.put(state.threshold);
    out.put(state.prompt_end);
  }
  bool restore_table(int table, ByteReader& in) override {
    State& state = states_[static_cast<std::size_t>(table)];
    if (!in.get(state.threshold) || !in.get(state.prompt_end)) return false;
    return state.threshold >= 1 && state.threshold <= capped(kMostTokens) && state.prompt_end >= -1;
  }

  std::int64_t capped(std::int64_t threshold) const {
    return options_.max ? std::min(threshold, *options_.max) : threshold;
  }

  void score(ScoreList& list, const Step& step, std::span<const double> mass) override {
    State& state = states_[static_cast<std::size_t>(step.table)];
    // All rows of a prompt are one step.
    const TokenIndex prompt_end = step.chunk.prompt ? step.prompt_end() : -1;
    const double decay = step.chunk.prompt && prompt_end == state.prompt_end ? 1.0 : options_.gamma;
    state.prompt_end = prompt_end;
    double* scores = list.values().data();
    for (std::size_t i = 0; i < mass.size(); ++i) scores[i] = decay * scores[i] + mass[i];
  }

  void prune(ScoreList& list, const Step& step) override {
    State& state = states_[static_cast<std::size_t>(step.table)];
    const std::int64_t held = list.size();
    if (held <= state.threshold) return;
    const std::int64_t top = breakpoint(list);
    if (top >= 0 && keep_top(list, top)) {
      state.threshold = capped(std::max(state.threshold, top + options_.recent_of(held)));
    } else if (options_.max && held >= *options_.max) {
      const std::int64_t recent = options_.recent_of(held);
      const std::int64_t kept = std::max(*options_.max / 2, options_.sinks + recent);
      list.drop_lowest(held - kept, options_.sinks, held - recent, list.values());
      state.threshold = *options_.max;
    } else {
      state.threshold = capped(std::min(2 * state.threshold, kMostTokens));
    }
  }

  // Returns how many scores precede the first sharp drop in descending order; -1: there is none (Eq. 4, with >=).
  std::int64_t breakpoint(const ScoreList& list) const {
    const std::int64_t held = list.size();
    std::vector<double> sorted(list.values().begin(), list.values().begin() + held);
    for (double& score : sorted)
      if (score != score) score = std::numeric_limits<double>::infinity();  // std::sort needs an order of NaNs too
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (std::int64_t d = 1; d < options_.segments; ++d) {
      const std::int64_t cut = held * d / options_.segments;
      const double lowest = sorted[static_cast<std::size_t>(cut)];
      if (lowest == 0 || sorted[0] / lowest >= options_.tau) return cut;
    }
    return -1;
  }

  // Keeps the `top` highest scores, the sinks and the recent tokens. Returns false, and changes nothing, if these are
  // `max` tokens or more.
  bool keep_top(ScoreList& list, std::int64_t top) const {
    const std::int64_t held = list.size();
    const std::int64_t recent = options_.recent_of(held);
    const auto scores = list.values().first(static_cast<std::size_t>(held));
    ScoreList::Lowest lowest(scores, held - top);
    const auto goes = [&](std::int64_t i) {
      const bool low = lowest(scores[static_cast<std::size_t>(i)]);
      return low && i >= options_.sinks && i < held - recent;
    };
    if (options_.max) {
      const ScoreList::Lowest fresh = lowest;
      std::int64_t kept = held;
      for (std::int64_t i = 0; i < held; ++i) kept -= goes(i) ? 1 : 0;
      lowest = fresh;
      if (kept >= *options_.max) return false;
    }
    list.drop_if(goes);
    return true;
  }

  LetheOptions options_;
  std::vector<State> states_;
};

Result<std::unique_ptr<RetentionPolicy>> make_lethe(const PolicyOptions& given) {
  LetheOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.tau, given.get_double("tau", std::nextafter(1.0, 2.0), 1e300));
  KVASIR_ASSIGN_OR_RETURN(const double recent_share, given.get_double("recent", 0, 1));
  options.recent = std::llround(recent_share * static_cast<double>(Budget::kWhole));
  KVASIR_ASSIGN_OR_RETURN(options.sinks, given.get_int("sinks", 0, kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(options.segments, given.get_int("segments", 2, 1000));
  KVASIR_ASSIGN_OR_RETURN(options.gamma, given.get_double("gamma", 0, 1));
  KVASIR_ASSIGN_OR_RETURN(options.start, given.get_int("start", 1, kMostTokens));
  if (given.has("max")) {
    KVASIR_ASSIGN_OR_RETURN(options.max, given.get_int("max", 1, kMostTokens));
  }
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t protect, given.get_protect(options.max.value_or(0)));
  options.sinks = std::max(options.sinks, protect);
  if (options.max) {
    const std::int64_t recent = options.recent_of(*options.max + 1);
    if (options.sinks + recent > *options.max)
      return invalid_argument(
          "policy 'lethe': {}={} and recent={} ({} of {} tokens) leave nothing to drop below max={}; "
          "lower them or raise max",
          protect > 0 && options.sinks == protect ? "protect" : "sinks", options.sinks, recent_share, recent,
          *options.max + 1, *options.max);
  }
  KVASIR_ASSIGN_OR_RETURN(ScoredPolicy::Traits traits, ScoredPolicy::Traits::read(given, {"tau", "start"}));
  traits.reduction = MassReduction::kSum;
  return {std::make_unique<LethePolicy>(std::move(traits), options)};
}

}  // namespace

const PolicyInfo kLethePolicy{
    .name = "lethe",
    .summary =
        "decayed attention; each layer prunes where its own sorted scores drop sharply, and waits where they do not",
    .formula =
        "score = gamma * score + sum over heads of mass; once more than L_evict are held: keep what stands before the "
        "first cut c with v[0] / v[c] >= tau, sinks and recent; without such a cut L_evict doubles",
    .reference =
        "Lethe, Zeng et al., Layer- and Time-Adaptive KV Cache Pruning for Reasoning-Intensive LLM Serving, Eq. 4 "
        "and 5, algorithm 1",
    .options = kLetheOptions,
    .acts = "when the tokens held exceed L_evict, for each layer",
    .make = make_lethe,
};

}  // namespace kvasir
