// How time grows with size: instead of bounds in seconds, which a slow or busy machine breaks.
// Thread-safety: pure functions.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <functional>

namespace kvasir::test {

// Processor time that `work` takes on the calling thread: what else runs on the machine hardly counts.
inline double cpu_seconds_of(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double start = now();
  work();
  return now() - start;
}

// Expects that `large`, which is `small` at `times` the size, takes about `times` as long. What is quadratic takes
// times * times; the bound lies in the middle, by factors. Noise can fail one try, but not three.
inline void expect_linear(int times, const std::function<void()>& small, const std::function<void()>& large) {
  const double bound = times * std::sqrt(times);
  double ratio = 0;
  for (int tries = 0; tries < 3; ++tries) {
    std::array<double, 3> seconds{};
    for (double& s : seconds) s = cpu_seconds_of(small);
    std::ranges::sort(seconds);
    ratio = cpu_seconds_of(large) / seconds[1];
    if (ratio < bound) return;
  }
  ADD_FAILURE() << times << " times the size takes " << ratio << " times as long";
}

}  // namespace kvasir::test
