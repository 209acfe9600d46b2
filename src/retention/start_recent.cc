#include "retention/start_recent.h"

#include <algorithm>

namespace kvasir {

std::int64_t start_recent_excess(const StartRecentOptions& options, std::int64_t held) {
  const std::int64_t excess = held - (options.sinks + options.window);
  if (options.every == 0 || excess < options.every + options.slack) return 0;
  return options.max_drop > 0 ? std::min(excess, options.max_drop) : excess;
}

std::optional<std::int64_t> start_recent_bound(const StartRecentOptions& options) {
  if (options.every == 0) return std::nullopt;
  return options.sinks + options.window + options.every + options.slack;
}

StartRecentPolicy::State StartRecentPolicy::step(State state) const {
  ++state.length;
  const std::int64_t drop = start_recent_excess(options_, state.length);
  state.length -= drop;
  state.dropped += drop;
  return state;
}

int StartRecentPolicy::rows_together(int want) const {
  // The first drop behind sinks opens a second frame; rotating keys changes them for all rows that follow.
  const bool until_next = options_.realign == Realign::kRotate;
  const bool until_first = options_.sinks > 0 && state_.dropped == 0;
  if (!until_next && !until_first) return want;
  State state = state_;
  for (int rows = 1; rows < want; ++rows) {
    state = step(state);
    if (state.dropped != state_.dropped) return rows;
  }
  return want;
}

IndexRange StartRecentPolicy::advance() {
  const IndexRange hidden = dropped();
  state_ = step(state_);
  return hidden;
}

}  // namespace kvasir
