#include "generation/stop_matcher.h"

#include <algorithm>

#include "base/status.h"

namespace kvasir {

Result<StopMatcher> StopMatcher::from_state(std::vector<std::string> stops, StopMatcherState state, std::size_t shown) {
  StopMatcher matcher(std::move(stops), shown);
  const auto can_become = [&](const std::string& stop) {
    return stop.size() > state.held.size() && stop.starts_with(state.held);
  };
  const auto is_held = [&](const std::string& stop) { return state.held.find(stop) != std::string::npos; };
  const std::vector<std::string>& all = matcher.stops_;
  if (!state.held.empty() && (state.stopped || std::none_of(all.begin(), all.end(), can_become) ||
                              std::any_of(all.begin(), all.end(), is_held)))
    return data_loss("a generation holds back text that is not the start of a stop string");
  if (state.stopped && all.empty()) return data_loss("a generation met a stop string, but has none");
  matcher.held_ = std::move(state.held);
  matcher.stopped_ = state.stopped;
  return matcher;
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  std::size_t found = std::string::npos, end = std::string::npos;
  for (std::size_t i = 0; i < stops_.size(); ++i) {
    const std::size_t at = held_.find(stops_[i]);
    if (at >= found) continue;
    found = at;
    end = i < shown_ ? at + stops_[i].size() : at;
    found_ = stops_[i];
  }
  if (found != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, end);
    held_.clear();
    return out;
  }
  // Hold back the longest suffix that starts a stop string.
  std::size_t hold = 0;
  for (const std::string& stop : stops_)
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > hold; --n)
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) hold = n;
  std::string out = held_.substr(0, held_.size() - hold);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::flush() {
  return std::exchange(held_, {});
}

}  // namespace kvasir
