#include "cli/time_left.h"

#include <algorithm>
#include <cmath>

namespace kvasir::cli {

double ReadingWork::attended(double tokens) const {
  const auto of_window = [&](double count) {
    const double growing = std::min(count, static_cast<double>(most_kept));
    return growing * growing / 2 + (count - growing) * static_cast<double>(most_kept);
  };
  const auto length = static_cast<double>(window);
  const double windows = std::floor(tokens / length);
  return windows * of_window(length) + of_window(tokens - windows * length);
}

void TimeLeft::add(double seconds, std::int64_t done, std::int64_t total) {
  time_ = seconds;
  done_ = static_cast<double>(done);
  total_ = static_cast<double>(total);
  const double attended = work_.attended(done_);
  nn_ += done_ * done_;
  na_ += done_ * attended;
  aa_ += attended * attended;
  nt_ += done_ * time_;
  at_ += attended * time_;
}

double TimeLeft::seconds() const {
  if (done_ <= 0 || total_ <= done_) return 0;
  const double even = time_ * (total_ - done_) / done_;  // if all tokens cost the same
  const double determinant = nn_ * aa_ - na_ * na_;
  if (work_.most_kept == 0 || determinant <= 1e-9 * nn_ * aa_) return even;
  double per_token = (nt_ * aa_ - at_ * na_) / determinant;
  double per_attended = (at_ * nn_ - nt_ * na_) / determinant;
  if (per_attended < 0) per_token = nt_ / nn_, per_attended = 0;
  if (per_token < 0) per_token = 0, per_attended = at_ / aa_;
  // Scales the fit to the time passed, so that its errors do not shift the present.
  const double passed = per_token * done_ + per_attended * work_.attended(done_);
  const double all = per_token * total_ + per_attended * work_.attended(total_);
  if (passed <= 0) return even;
  const double fitted = time_ * (all - passed) / passed;
  const double trust = std::min(1.0, done_ / total_ / 0.05);  // the first passes tell little about growth
  return even + trust * (fitted - even);
}

bool LineTimes::due(double seconds) {
  if (seconds < next_) return false;
  next_ = seconds + std::min(seconds, 60.0);
  return true;
}

}  // namespace kvasir::cli
