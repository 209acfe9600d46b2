// The promise of quality of one request: what it measures, the budget that it has now, and what that cost.
// Thread-safety: as RequestQueue; row watches as RowWatch says.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "planning/quality_plan.h"
#include "quality/quality_controller.h"
#include "quality/quality_meter.h"
#include "retention/policy.h"
#include "scheduler/row_watch.h"

namespace kvasir {

class Request;
class Task;

class RequestQuality {
 public:
  // `budget`: the ledger of the cache; it outlives this.
  RequestQuality(const QualityOptions& options, QualityTerms terms, std::int64_t prompt, int vocabulary,
                 MemoryBudget* budget);
  RequestQuality(const RequestQuality&) = delete;
  RequestQuality& operator=(const RequestQuality&) = delete;

  const QualityTerms& terms() const { return terms_; }
  QualityMeter& meter() { return meter_; }
  const QualityMeter& meter() const { return meter_; }
  RowWatch& rows() { return rows_; }            // of the request's task
  RowWatch& full_rows() { return full_rows_; }  // of the shadow's task

  // Returns whether a task has come to the next check.
  bool is_due(const Task& task) const;
  // From begin_check to the end of the check the request is held.
  void begin_check(Request* shadow);
  Request* shadow() const { return shadow_; }  // null: no check is under way
  bool is_checking() const { return shadow_ != nullptr; }
  // Ends the check without a result. The rows captured stay; close the meter to have them captured again.
  void abandon_check();
  // Ends it with one. `bytes`: most that the shadow held. Returns whether the budget has changed. REQUIRES:
  // meter().compared_all().
  bool end_check(std::uint64_t bytes);
  // Returns the policy with the budget of now, in its initial state.
  std::unique_ptr<RetentionPolicy> policy() const { return terms_.budget.policy(controller_.budget()); }

  // The request's pages are gone; so are the captured rows, unless a check needs them.
  void note_released();

  // `generated`: tokens so far.
  QualityReport report(std::int64_t generated) const;

 private:
  using Clock = std::chrono::steady_clock;

  class Rows final : public RowWatch {
   public:
    explicit Rows(QualityMeter* meter) : meter_(meter) {}
    std::optional<std::int64_t> next(std::int64_t row) const override { return meter_->row_to_capture(row); }
    void take(std::int64_t row, std::span<const float> logits) override { meter_->capture(row, logits); }

   private:
    QualityMeter* meter_;
  };
  class FullRows final : public RowWatch {
   public:
    explicit FullRows(QualityMeter* meter) : meter_(meter) {}
    std::optional<std::int64_t> next(std::int64_t row) const override { return meter_->row_to_compare(row); }
    void take(std::int64_t row, std::span<const float> logits) override { meter_->compare(row, logits); }

   private:
    QualityMeter* meter_;
  };

  QualityOptions options_;
  QualityTerms terms_;
  std::int64_t prompt_;
  QualityMeter meter_;
  QualityController controller_;
  Rows rows_{&meter_};
  FullRows full_rows_{&meter_};
  Request* shadow_ = nullptr;
  Clock::time_point held_since_;
  QualityReport report_;  // the sums of what it cost, and the changes of budget
};

}  // namespace kvasir
