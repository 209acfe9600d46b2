// Wants the logits of some rows of a task's text: row r is the prediction behind token r.
// Thread-safety: calls come one at a time, take() on any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace kvasir {

class RowWatch {
 public:
  virtual ~RowWatch() = default;
  // Returns the first row, at `row` or behind it, whose logits are wanted. Changes through take() and between passes of
  // rows that have all run.
  virtual std::optional<std::int64_t> next(std::int64_t row) const = 0;
  // Takes the logits [vocabulary] of row next(row). Must not throw, nor use the cache's budget.
  virtual void take(std::int64_t row, std::span<const float> logits) = 0;
};

}  // namespace kvasir
