#include "base/status.h"
#include "retention/registry.h"
#include "retention/start_recent.h"

namespace kvasir {
namespace {

constexpr PolicyOption kFullOptions[] = {
    {"thoughts", "keep", "keep or drop", "drop: the thoughts of an answer leave the cache when they close"},
};

Result<std::unique_ptr<RetentionPolicy>> make_full(const PolicyOptions& given) {
  StartRecentOptions options{.every = 0, .positions_as_part = PositionMode::kAuto};
  constexpr std::string_view kThoughts[] = {"keep", "drop"};
  const Result<std::string> thoughts = given.get_choice("thoughts", kThoughts);
  if (!thoughts.ok()) return thoughts.status();
  options.drops_thoughts = *thoughts == "drop";
  return {std::make_unique<StartRecentPolicy>(given.canonical({}), options)};
}

}  // namespace

const PolicyInfo kFullPolicy{
    .name = "full",
    .summary = "keeps everything; ends with a visible reason when the context or the memory is full",
    .formula = "keep = all tokens",
    .reference = "ordinary attention",
    .options = kFullOptions,
    .acts = "never, except an answer's thoughts with thoughts=drop",
    .make = make_full,
};

}  // namespace kvasir
