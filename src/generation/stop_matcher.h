// Finds stop strings in a stream of text. Holds text back while it may be part of a stop string.
// Thread-safety: none.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// A StopMatcher as plain data, without its stop strings.
struct StopMatcherState {
  std::string held;      // text held back: the start of a stop string, or empty
  bool stopped = false;  // a stop string was found
};

class StopMatcher {
 public:
  // The first `shown` strings are shown when they stop the text. REQUIRES: no string is empty.
  explicit StopMatcher(std::vector<std::string> stops, std::size_t shown = 0)
      : stops_(std::move(stops)), shown_(shown) {}

  // Continues where state() was taken. Errors: kDataLoss for a state that no matcher of these strings can be in.
  // REQUIRES: no string is empty.
  static Result<StopMatcher> from_state(std::vector<std::string> stops, StopMatcherState state, std::size_t shown = 0);
  StopMatcherState state() const { return {held_, stopped_}; }

  // Adds text to the stream. Returns the text that may be shown now: never a stop string that is not to be shown, nor
  // what follows a stop string.
  std::string push(std::string_view text);

  // Returns the text held back. Call it when the stream has ended without a stop string.
  std::string flush();

  bool stopped() const { return stopped_; }
  const std::vector<std::string>& stops() const { return stops_; }
  std::size_t shown() const { return shown_; }
  // The stop string that push() found; "" before, and after from_state().
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::size_t shown_;
  std::string held_;
  std::string found_;
  bool stopped_ = false;
};

}  // namespace kvasir
