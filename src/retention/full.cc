#include "retention/registry.h"
#include "retention/start_recent.h"

namespace kvasir {
namespace {

Result<std::unique_ptr<RetentionPolicy>> make_full(const PolicyOptions&) {
  const StartRecentOptions never{.every = 0, .positions_as_part = PositionMode::kAuto};
  return {std::make_unique<StartRecentPolicy>("full", never)};
}

}  // namespace

const PolicyInfo kFullPolicy{
    .name = "full",
    .summary = "keeps everything; ends with a visible reason when the context or the memory is full",
    .formula = "keep = all tokens",
    .reference = "ordinary attention",
    .options = {},
    .acts = "never: it drops nothing",
    .make = make_full,
};

}  // namespace kvasir
