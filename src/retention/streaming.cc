#include <fmt/core.h>

#include "base/status.h"
#include "retention/scored.h"
#include "retention/start_recent.h"

namespace kvasir {
namespace {

constexpr PolicyOption kStreamingOptions[] = {
    {"sinks", "4", "0 to 2^40", "first tokens of the text, never dropped (S)"},
    {"window", "2044", "1 to 2^40", "most recent tokens kept (W); not together with cap"},
    {"cap", "-", "1 to 2^40", "size of the cache in all: window = cap - sinks - slack - overlap - refresh"},
    {"every", "1", "0 to 2^40", "prune when this many tokens are above the target (R); 1 is strict, 0 never prunes"},
    {"slack", "0", "0 to 2^40", "delays the trigger by this many tokens; reduces the window under a cap"},
    {"overlap", "0", "0 to 2^40", "reduces the window under a cap"},
    {"refresh", "0", "0 to 2^40", "reduces the window under a cap"},
    {"max_drop", "0", "0 to 2^40", "most tokens one prune drops; 0: no limit"},
    {"realign", "frames", "frames or rotate", "move what stays by changing one integer, or by rotating its keys"},
    kProtectOption,
};

Result<std::unique_ptr<RetentionPolicy>> make_streaming(const PolicyOptions& given) {
  StartRecentOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.sinks, given.get_int("sinks", 0, kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(options.every, given.get_int("every", 0, kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(options.slack, given.get_int("slack", 0, kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(options.max_drop, given.get_int("max_drop", 0, kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t overlap, given.get_int("overlap", 0, kMostTokens));
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t refresh, given.get_int("refresh", 0, kMostTokens));
  constexpr std::string_view kRealign[] = {"frames", "rotate"};
  KVASIR_ASSIGN_OR_RETURN(const std::string realign, given.get_choice("realign", kRealign));
  options.realign = realign == "rotate" ? Realign::kRotate : Realign::kFrames;
  if (given.has("cap")) {
    if (given.has("window")) return invalid_argument("policy 'streaming': give either cap or window, not both");
    KVASIR_ASSIGN_OR_RETURN(const std::int64_t cap, given.get_int("cap", 1, kMostTokens));
    options.window = cap - options.sinks - options.slack - overlap - refresh;
    if (options.window < 1)
      return invalid_argument(
          "policy 'streaming': cap={} leaves no window behind sinks={}, slack={}, overlap={} and "
          "refresh={}; raise cap",
          cap, options.sinks, options.slack, overlap, refresh);
  } else {
    KVASIR_ASSIGN_OR_RETURN(options.window, given.get_int("window", 1, kMostTokens));
  }
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t protect, given.get_protect(options.sinks + options.window));
  std::string canonical = fmt::format("streaming:sinks={},window={}", options.sinks, options.window);
  if (options.every != 1) canonical += fmt::format(",every={}", options.every);
  if (options.slack != 0) canonical += fmt::format(",slack={}", options.slack);
  if (options.max_drop != 0) canonical += fmt::format(",max_drop={}", options.max_drop);
  if (options.realign == Realign::kRotate) canonical += ",realign=rotate";
  if (protect > 0) canonical += fmt::format(",protect={}", protect);
  options.protect(protect);
  return {std::make_unique<StartRecentPolicy>(std::move(canonical), options)};
}

}  // namespace

const PolicyInfo kStreamingPolicy{
    .name = "streaming",
    .summary = "the first tokens (attention sinks) and a window of recent ones, at constant memory and speed",
    .formula = "C = sinks + window; after a step with L - C >= every: keep the first sinks and the last window",
    .reference = "StreamingLLM, Xiao et al., arXiv 2309.17453, section 3.2; Lazy Pruning, Lin",
    .options = kStreamingOptions,
    .make = make_streaming,
};

}  // namespace kvasir
