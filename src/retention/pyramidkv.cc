#include <cmath>

#include "base/status.h"
#include "retention/projected_values.h"
#include "retention/prompt_window.h"

namespace kvasir {
namespace {

constexpr PolicyOption kPyramidKvOptions[] = {
    kPromptBudgetOption,
    kWindowOption,
    kKernelOption,
    kPoolOption,
    kAggOption,
    {"beta", "20", "0.01 to 10^6", "the last layer keeps (budget - window) / beta besides the window"},
    kShareOption,
    kFloorOption,
    kChunkOption,
    kGateOption,
    kValueOption,
    kBlocksOption,
    kWhileWritingOption,
    kPosOption,
    kProtectOption,
};

class PyramidKvPolicy final : public PromptWindowPolicy {
 public:
  PyramidKvPolicy(Traits traits, const PromptWindowOptions& options, double beta)
      : PromptWindowPolicy(traits, options), beta_(beta) {}
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<PyramidKvPolicy>(*this); }

 private:
  std::int64_t most_ranked(int table, std::int64_t held, std::int64_t seen) const override {
    // Where memory is bounded, layers hold different numbers of tokens, and the pyramid is that of all tokens seen.
    const std::int64_t of = options().blocks || options().every > 0 ? seen : held;
    if (of <= options().budget.at(seen)) return held;
    return ranked_in(table / layout().per_layer, of, options().ranked(seen));
  }

  std::int64_t most_in_table() const override {
    const auto mean = static_cast<double>(options().ranked(0));
    return std::max(options().window + static_cast<std::int64_t>(std::ceil(std::max(2 * mean - mean / beta_, mean))),
                    options().budget.tokens);
  }

  // Returns what a layer keeps besides the window: it falls linearly from the first layer to the last, with this mean.
  std::int64_t ranked_in(int layer, std::int64_t held, std::int64_t mean) const {
    const auto b = static_cast<double>(mean);
    const auto earlier = static_cast<double>(held - options().window);
    double least = b / beta_;
    double most = 2 * b - least;
    if (most >= earlier) {
      most = earlier;
      least = 2 * b - most;
    }
    if (layout().layers == 1 || most < least || least < 0) return mean;
    // Rounds halves up, including those that rounding errors put just below a half.
    constexpr double kTie = 1e-9;
    return static_cast<std::int64_t>(std::floor(most - layer * (most - least) / (layout().layers - 1) + 0.5 + kTie));
  }

  double beta_;
};

Result<std::unique_ptr<RetentionPolicy>> make_pyramidkv(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const PromptWindowOptions options, PromptWindowOptions::read(given));
  KVASIR_ASSIGN_OR_RETURN(const double beta, given.get_double("beta", 0.01, 1e6));
  KVASIR_ASSIGN_OR_RETURN(const ScoredPolicy::Traits traits,
                          ScoredPolicy::Traits::read(given, {"budget", "window", "kernel"}));
  return {std::make_unique<PyramidKvPolicy>(traits, options, beta)};
}

}  // namespace

const PolicyInfo kPyramidKvPolicy{
    .name = "pyramidkv",
    .summary = "snapkv with more tokens for the first layers and fewer for the last",
    .formula =
        "as snapkv; besides the window, layer l of L keeps round(max - l * (max - min) / (L - 1)), with b = budget - "
        "window, min = b / beta, max = 2b - min",
    .reference = "PyramidKV, Cai et al., arXiv 2406.02069",
    .options = kPyramidKvOptions,
    .acts = "at the end of a prompt, or of each of its chunks, and every so many tokens written, for each KV head",
    .make = make_pyramidkv,
};

}  // namespace kvasir
