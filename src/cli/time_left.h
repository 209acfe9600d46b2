// Estimates the time left of a task whose later parts cost more: each token of a text attends to the kept tokens before
// it. Thread-safety: none; one caller at a time.
#pragma once

#include <cstdint>
#include <limits>

namespace kvasir::cli {

// The cost of attention while a text is read.
struct ReadingWork {
  std::int64_t most_kept = 0;  // most tokens that one token attends to; 0: all units of work cost the same
  std::int64_t window = std::numeric_limits<std::int64_t>::max();  // tokens after which the cache starts empty again

  // Returns the sum of tokens attended to over the first `tokens` tokens.
  double attended(double tokens) const;
};

// Fits the time so far to a cost per token and a cost per token attended to.
class TimeLeft {
 public:
  explicit TimeLeft(const ReadingWork& work) : work_(work) {}

  // `seconds` since the start, when `done` of `total` tokens are done. In ascending order.
  void add(double seconds, std::int64_t done, std::int64_t total);
  // Returns the seconds left after the last call of add; 0 before any.
  double seconds() const;

 private:
  ReadingWork work_;
  double time_ = 0;
  double done_ = 0;
  double total_ = 0;
  // Sums of products over all points: n tokens, a attended, t seconds.
  double nn_ = 0, na_ = 0, aa_ = 0, nt_ = 0, at_ = 0;
};

// Says when lines of progress are due: after 5 seconds, then whenever the time has doubled or a minute has passed.
class LineTimes {
 public:
  // `seconds` since the start, ascending.
  bool due(double seconds);

 private:
  double next_ = 5;
};

}  // namespace kvasir::cli
