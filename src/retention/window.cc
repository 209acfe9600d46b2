#include <fmt/core.h>

#include "base/status.h"
#include "retention/scored.h"
#include "retention/start_recent.h"

namespace kvasir {
namespace {

constexpr PolicyOption kWindowOptions[] = {
    {"size", "2048", "1 to 2^40", "most recent tokens kept (W)"},
    kProtectBesideOption,
};

Result<std::unique_ptr<RetentionPolicy>> make_window(const PolicyOptions& given) {
  StartRecentOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.window, given.get_int("size", 1, kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(options.sinks, given.get_protect(options.window));
  return {std::make_unique<StartRecentPolicy>(given.canonical({"size"}), options)};
}

}  // namespace

const PolicyInfo kWindowPolicy{
    .name = "window",
    .summary = "the most recent tokens alone; loses the attention sinks and, with them, fluency: a baseline",
    .formula = "keep = the last size tokens",
    .reference = "window attention, the baseline of StreamingLLM, arXiv 2309.17453, figure 1(b)",
    .options = kWindowOptions,
    .make = make_window,
};

}  // namespace kvasir
