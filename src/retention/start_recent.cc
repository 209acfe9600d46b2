#include "retention/start_recent.h"

#include <algorithm>

namespace kvasir {

StartRecentPolicy::State StartRecentPolicy::step(State state) const {
  ++state.length;
  const std::int64_t excess = state.length - (options_.sinks + options_.window);
  if (options_.every == 0 || excess < options_.every + options_.slack) return state;
  const std::int64_t drop = options_.max_drop > 0 ? std::min(excess, options_.max_drop) : excess;
  state.length -= drop;
  state.dropped += drop;
  return state;
}

std::optional<std::int64_t> StartRecentPolicy::bound() const {
  if (options_.every == 0) return std::nullopt;
  return options_.sinks + options_.window + options_.every + options_.slack;
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

IdRange StartRecentPolicy::advance() {
  const IdRange hidden = dropped();
  state_ = step(state_);
  return hidden;
}

}  // namespace kvasir
