// The best score over the reference answers, as most benchmarks count it.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "tasks/metrics/metric.h"

namespace kvasir::metrics {

// Returns the highest of score(prediction, reference), or 0 if none is higher.
template <class Score>
double best_of(const MetricInput& input, Score score) {
  double best = 0;
  for (const std::string& reference : input.references) {
    best = std::max(best, static_cast<double>(score(input.prediction, std::string_view(reference))));
  }
  return best;
}

}  // namespace kvasir::metrics
