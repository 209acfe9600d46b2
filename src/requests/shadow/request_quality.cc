#include "requests/shadow/request_quality.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/task.h"

namespace kvasir {

RequestQuality::RequestQuality(const QualityOptions& options, QualityTerms terms, std::int64_t prompt, int vocabulary,
                               MemoryBudget* budget)
    : options_(options),
      terms_(std::move(terms)),
      prompt_(prompt),
      meter_(options, prompt, vocabulary, budget),
      controller_(options.kl,
                  {terms_.budget.first(), terms_.budget.least(), terms_.budget.most(), terms_.budget.unit()}) {
  report_.budgets.push_back({0, controller_.budget()});
}

bool RequestQuality::is_due(const Task& task) const {
  return !is_checking() && meter_.captured_all() && task.left() == 0 && task.known_tokens() == meter_.check_at();
}

void RequestQuality::begin_check(Request* shadow) {
  KVASIR_CHECK(!is_checking() && shadow != nullptr);
  shadow_ = shadow;
  held_since_ = Clock::now();
}

void RequestQuality::abandon_check() {
  KVASIR_CHECK(is_checking());
  shadow_ = nullptr;
  report_.shadow_seconds += std::chrono::duration<double>(Clock::now() - held_since_).count();
}

bool RequestQuality::end_check(std::uint64_t bytes) {
  abandon_check();
  const std::int64_t text = meter_.check_at();
  report_.shadow_tokens += meter_.tokens_to_read();
  report_.shadow_bytes = std::max(report_.shadow_bytes, bytes);
  const std::int64_t before = controller_.budget();
  if (controller_.add(meter_.end_check()) == before) return false;
  report_.budgets.push_back({text - prompt_, controller_.budget()});
  report_.reread_tokens += text;
  return true;
}

void RequestQuality::note_released() {
  if (!is_checking()) meter_.close();
}

QualityReport RequestQuality::report(std::int64_t generated) const {
  QualityReport report = report_;
  report.kl_bound = options_.kl;
  report.kl_mean = controller_.mean();
  report.kl_max = controller_.largest_mean();
  report.compared = controller_.compared();
  report.checks = controller_.checks();
  report.unchecked = generated - controller_.checks() * options_.every;
  report.budget = controller_.budget();
  report.held = controller_.holds();
  report.rows_bytes = terms_.rows_bytes;
  return report;
}

}  // namespace kvasir
