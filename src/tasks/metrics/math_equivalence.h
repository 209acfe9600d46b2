// Equality of LaTeX answers as Hendrycks' MATH defines it, in the version of lm-evaluation-harness.
// Original: EleutherAI/lm-evaluation-harness lm_eval/tasks/hendrycks_math/utils.py.
// REQUIRES: valid UTF-8. Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tasks/metrics/metric.h"

namespace kvasir::metrics {

// Returns the content of the last \boxed{...} or "\boxed ..."; nullopt if there is none, and for an \fbox, which
// remove_boxed() refuses.
std::optional<std::string> last_boxed(std::string_view text);

// Returns what is between the first and the last "$", or all of a text with fewer than two.
std::string between_dollars(std::string_view text);

// is_equiv(): compares after removing spacing, units, degrees, \left, \right and the like, and writing fractions and
// roots alike. Where the original raises while it rewrites either answer, they must be equal as they are; so are all
// with one "/" between anything but integers, such as "x/2".
bool is_math_equivalent(std::string_view a, std::string_view b);

// is_math_equivalent of the prediction and a reference answer.
double math_equivalence(const MetricInput& input);
// The same after between_dollars.
double hendrycks_math(const MetricInput& input);

}  // namespace kvasir::metrics
