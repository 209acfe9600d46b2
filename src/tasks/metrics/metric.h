// Published metrics of long-context benchmarks: pure functions from a prediction and its reference answers to a score.
//
// A metric gives what its original in Python gives, to rounding; README.md lists each original and each known
// difference. Text may be any bytes. Invalid UTF-8 counts as U+FFFD, one for each maximal subpart, as Python's
// bytes.decode("utf-8", "replace") reads it.
// Time is linear in the texts but for ROUGE-L and code similarity, whose bounds are in rouge.h and sequence_ratio.h.
// Thread-safety: pure functions; all metrics are static.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

struct MetricInput {
  std::string_view prediction;
  std::span<const std::string> references;  // for most metrics alternatives, of which the best counts
  std::span<const std::string> classes;     // every label of the task; only classification_score reads them
};

struct Metric {
  std::string_view name;
  std::string_view source;                // the original: repository and function
  double (*compute)(const MetricInput&);  // REQUIRES: valid UTF-8, at least one reference
  bool needs_classes = false;             // without any it gives 0

  // Returns the score, from 0 to 1. Without references: 0.
  double score(const MetricInput& input) const;
};

// Returns null if there is no metric of that name.
const Metric* find_metric(std::string_view name);

std::vector<std::string_view> metric_names();

}  // namespace kvasir
