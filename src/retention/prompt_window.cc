#include "retention/prompt_window.h"

#include "base/status.h"

namespace kvasir {
namespace {

ScoredPolicy::Traits with_window_traits(ScoredPolicy::Traits traits) {
  traits.reduction = MassReduction::kMean;
  traits.scope = PolicyScope::kHead;
  traits.acts = ScoredPolicy::Acts::kAtPromptEnd;
  return traits;
}

}  // namespace

Result<PromptWindowOptions> PromptWindowOptions::read(const PolicyOptions& given, std::int64_t least_window) {
  PromptWindowOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.budget, given.get_budget("budget", kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(options.window, given.get_int("window", least_window, std::int64_t{1} << 24));
  KVASIR_ASSIGN_OR_RETURN(options.kernel, get_kernel(given));
  if (!options.budget.is_share() && options.window > options.budget.tokens)
    return invalid_argument("policy '{}': window={} is above budget={}; lower it", given.name(), options.window,
                            options.budget.tokens);
  KVASIR_ASSIGN_OR_RETURN(options.protect, given.get_protect(options.budget.tokens));
  if (!options.budget.is_share() && options.protect + options.window > options.budget.tokens)
    return invalid_argument("policy '{}': protect={} and window={} together are above budget={}; lower them",
                            given.name(), options.protect, options.window, options.budget.tokens);
  if (given.accepts("pool")) {
    constexpr std::string_view kPools[] = {"avg", "max"};
    KVASIR_ASSIGN_OR_RETURN(const std::string pool, given.get_choice("pool", kPools));
    options.max_pool = pool == "max";
  }
  return options;
}

PromptWindowPolicy::PromptWindowPolicy(Traits traits, const PromptWindowOptions& options)
    : ScoredPolicy(with_window_traits(std::move(traits))), options_(options) {}

void PromptWindowPolicy::begin(const TableLayout& layout) {
  ScoredPolicy::begin(layout);
  windows_.assign(static_cast<std::size_t>(layout.tables()), {});
}

void PromptWindowPolicy::score(ScoreList& list, const Step& step, std::span<const double> mass) {
  if (!wants(step.chunk, step.row, 0)) return;
  Window& window = windows_[static_cast<std::size_t>(step.table)];
  if (window.prompt_end != step.prompt_end()) {
    window = {0, step.prompt_end()};
    for (int i = 0; i < list.values_per_token(); ++i) std::ranges::fill(list.values(i), 0.0);
    begin_window(step.table);
  }
  ++window.rows;
  // The tokens held when the prompt ends, less the window.
  const std::int64_t earlier = static_cast<std::int64_t>(mass.size()) + step.prompt_left() - options_.window;
  if (earlier > 0) add_row(list, step, window.rows, mass.first(static_cast<std::size_t>(earlier)));
}

void PromptWindowPolicy::add_row(ScoreList& list, const Step&, std::int64_t, std::span<const double> mass) {
  double* sums = list.values().data();
  for (std::size_t i = 0; i < mass.size(); ++i) sums[i] += mass[i];
}

void PromptWindowPolicy::rank(ScoreList& list, std::int64_t rows, std::span<double> scores) {
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = list.values()[i] / static_cast<double>(rows);
}

void PromptWindowPolicy::keep(ScoreList& list, int table, std::int64_t ranked) {
  const std::int64_t earlier = list.size() - options_.window;
  ranked = std::max(ranked, options_.protect);
  if (earlier <= ranked) return;
  std::vector<double> scores(static_cast<std::size_t>(earlier));
  rank(list, rows_observed(table), scores);
  list.drop_lowest(earlier - ranked, options_.protect, earlier, pooled(scores, options_.kernel, options_.max_pool));
}

void PromptWindowPolicy::save_table(int table, ByteWriter& out) const {
  const Window& window = windows_[static_cast<std::size_t>(table)];
  out.put(window.rows);
  out.put(window.prompt_end);
}

bool PromptWindowPolicy::restore_table(int table, ByteReader& in) {
  Window& window = windows_[static_cast<std::size_t>(table)];
  if (!in.get(window.rows) || !in.get(window.prompt_end)) return false;
  return window.rows >= 0 && window.rows <= options_.window && window.prompt_end >= 0;
}

Result<std::int64_t> get_kernel(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t kernel, given.get_int("kernel", 1, 1023));
  if (kernel % 2 == 0)
    return invalid_argument("policy '{}': kernel={} must be odd, so that it has a middle; give {} or {}", given.name(),
                            kernel, kernel - 1, kernel + 1);
  return kernel;
}

std::vector<double> pooled(std::span<const double> scores, std::int64_t kernel, bool max_pool) {
  std::vector<double> out(scores.size());
  const auto count = static_cast<std::int64_t>(scores.size());
  for (std::int64_t i = 0; i < count; ++i) {
    double total = 0;
    for (std::int64_t k = std::max<std::int64_t>(i - kernel / 2, 0); k <= std::min(i + kernel / 2, count - 1); ++k) {
      const double score = scores[static_cast<std::size_t>(k)];
      total = max_pool ? std::max(total, score) : total + score;
    }
    out[static_cast<std::size_t>(i)] = max_pool ? total : total / static_cast<double>(kernel);
  }
  return out;
}

}  // namespace kvasir
