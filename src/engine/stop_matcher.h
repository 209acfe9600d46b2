// Finds stop strings in a stream of text: lets through what can no longer be part of one.
// Thread-safety: none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

class StopMatcher {
 public:
  // REQUIRES: no string is empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // The text that may be shown now. Once a stop string came, everything from it on is swallowed.
  std::string push(std::string_view text);
  std::string flush();  // what was held back
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace kvasir
