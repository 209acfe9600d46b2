#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace kvasir {

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  std::size_t found = std::string::npos;
  for (const std::string& stop : stops_) found = std::min(found, held_.find(stop));
  if (found != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, found);
    held_.clear();
    return out;
  }
  // Hold back the longest end that begins a stop string.
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
