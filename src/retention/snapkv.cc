#include "base/status.h"
#include "retention/projected_values.h"
#include "retention/prompt_window.h"

namespace kvasir {
namespace {

constexpr PolicyOption kSnapKvOptions[] = {
    kPromptBudgetOption, kWindowOption, kKernelOption, kPoolOption,   kAggOption,          kShareOption, kFloorOption,
    kChunkOption,        kGateOption,   kValueOption,  kBlocksOption, kWhileWritingOption, kPosOption,   kProtectOption,
};

class SnapKvPolicy final : public PromptWindowPolicy {
 public:
  SnapKvPolicy(Traits traits, const PromptWindowOptions& options) : PromptWindowPolicy(traits, options) {}
  std::unique_ptr<RetentionPolicy> clone() const override { return std::make_unique<SnapKvPolicy>(*this); }
};

Result<std::unique_ptr<RetentionPolicy>> make_snapkv(const PolicyOptions& given) {
  KVASIR_ASSIGN_OR_RETURN(const PromptWindowOptions options, PromptWindowOptions::read(given));
  KVASIR_ASSIGN_OR_RETURN(const ScoredPolicy::Traits traits,
                          ScoredPolicy::Traits::read(given, {"budget", "window", "kernel"}));
  return {std::make_unique<SnapKvPolicy>(traits, options)};
}

}  // namespace

const PolicyInfo kSnapKvPolicy{
    .name = "snapkv",
    .summary = "prunes a prompt at its end by what its last queries attend to; keeps what is generated",
    .formula =
        "score = mean mass of the last window queries, pooled over kernel tokens; keep the window and the best of the "
        "earlier tokens, budget in all",
    .reference = "SnapKV, Li et al., arXiv 2404.14469",
    .options = kSnapKvOptions,
    .acts = "at the end of a prompt, or of each of its chunks, and every so many tokens written, for each KV head",
    .make = make_snapkv,
};

}  // namespace kvasir
