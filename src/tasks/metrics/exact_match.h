// Exact match and extraction by regular expression as in lm-evaluation-harness, and GSM8K, which is scored by both.
// Originals: EleutherAI/lm-evaluation-harness lm_eval/api/metrics.py (exact_match_hf_evaluate),
// lm_eval/filters/extraction.py (RegexFilter), lm_eval/tasks/gsm8k/gsm8k.yaml.
// Thread-safety: immutable after construction.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "tasks/metrics/metric.h"
#include "tasks/metrics/pattern.h"

namespace kvasir {

struct ExactMatchOptions {
  std::vector<std::string> regexes_to_ignore;  // matches are removed, one expression after the other
  bool ignore_case = false;
  bool ignore_punctuation = false;  // of ASCII
  bool ignore_numbers = false;      // removes the digits 0 to 9
};

class ExactMatch {
 public:
  // Errors: kInvalidArgument naming the expression that does not compile.
  static Result<ExactMatch> create(const ExactMatchOptions& options);

  // Returns 1 if the prediction equals a reference after both were reduced as the options say, else 0.
  double score(const MetricInput& input) const;

 private:
  std::string reduce(std::string_view text) const;

  std::vector<metrics::Pattern> ignored_;
  ExactMatchOptions options_;
};

struct RegexFilterOptions {
  std::string pattern = R"(#### (\-?[0-9\.\,]+))";
  int group_select = 0;  // which match: 0 the first, -1 the last
  std::string fallback = "[invalid]";
};

class RegexFilter {
 public:
  // Errors: kInvalidArgument for a pattern that does not compile.
  static Result<RegexFilter> create(RegexFilterOptions options);

  // Returns the selected match without white space at its ends: of a pattern with groups, the group, or the first that
  // is not empty if there are several. Returns `fallback` if there is no such match.
  std::string apply(std::string_view text) const;

 private:
  RegexFilter(metrics::Pattern pattern, RegexFilterOptions options);

  metrics::Pattern pattern_;
  RegexFilterOptions options_;
};

namespace metrics {

// The filters `strict-match` and `flexible-extract` of gsm8k.yaml.
std::string gsm8k_strict_filter(std::string_view text);
std::string gsm8k_flexible_filter(std::string_view text);

// One of these filters, then gsm8k.yaml's exact match. References: answers, or solutions that end with "#### answer".
double gsm8k_strict_match(const MetricInput& input);
double gsm8k_flexible_extract(const MetricInput& input);
// Without any option.
double plain_exact_match(const MetricInput& input);

}  // namespace metrics
}  // namespace kvasir
