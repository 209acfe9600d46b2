// Measures KL(full || policy) at the compared positions of the tokens between two checks: keeps the policy's logits of
// these positions until the full cache's are known.
//
// A position is a row: row r is the prediction behind token r of the text. Of an answer behind a prompt of p tokens,
// row p - 1 + j predicts generated token j, and is compared if j is a multiple of the stride. The check after n tokens
// compares the rows of tokens above n - every, up to n; the first check that of token 0 besides.
//
// Thread-safety: none. capture() and compare() may run on any thread, one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/memory_budget.h"
#include "kvasir/quality.h"

namespace kvasir {

class QualityMeter {
 public:
  // Nothing is held before open(). `prompt`: tokens, 1 or more. `budget` outlives this.
  QualityMeter(const QualityOptions& options, std::int64_t prompt, int vocabulary, MemoryBudget* budget);

  // Returns the bytes that open() takes.
  static std::uint64_t bytes(const QualityOptions& options, int vocabulary);

  // Takes memory for the rows of a check. Returns false if there is none.
  bool open();
  // Gives it back, and forgets the rows captured since the last check: they are wanted again.
  void close();
  bool is_open() const { return charge_.bytes() > 0; }
  std::uint64_t held_bytes() const { return charge_.bytes(); }

  // Returns the first row, at `row` or behind it, that capture() still needs before the next check.
  std::optional<std::int64_t> row_to_capture(std::int64_t row) const;
  // Keeps the policy's logits [vocabulary] of a row. REQUIRES: is_open(); the row is row_to_capture(0).
  void capture(std::int64_t row, std::span<const float> logits);
  bool captured_all() const { return captured_ == rows_; }
  std::int64_t check_at() const { return prompt_ + generated_; }  // tokens of the text at which the next check is due

  // As above, of the rows that compare() needs. REQUIRES: captured_all().
  std::optional<std::int64_t> row_to_compare(std::int64_t row) const;
  // Compares the full cache's logits [vocabulary] of a row. REQUIRES: the row is row_to_compare(0).
  void compare(std::int64_t row, std::span<const float> logits);
  bool compared_all() const { return std::ssize(samples_) == rows_; }
  std::int64_t tokens_to_read() const { return row_of(rows_ - 1) + 1; }  // first tokens of the text, up to the last row

  // Returns the samples of the check, in order of rows, and goes on to the next. REQUIRES: compared_all().
  std::vector<double> end_check();

 private:
  std::int64_t row_of(std::int64_t index) const { return prompt_ - 1 + (first_ + index) * options_.stride; }
  std::optional<std::int64_t> from(std::int64_t index, std::int64_t row) const;
  void begin_check(std::int64_t generated);
  std::span<float> kept(std::int64_t index);

  QualityOptions options_;
  std::int64_t prompt_;
  std::size_t vocabulary_;
  MemoryCharge charge_;
  std::vector<float> logits_;  // [rows of a check at most, vocabulary]; empty unless open
  // Of the check to come:
  std::int64_t generated_ = 0;  // generated tokens at which it is due
  std::int64_t first_ = 0;      // its first row, in strides behind row prompt - 1
  std::int64_t rows_ = 0;
  std::int64_t captured_ = 0;    // rows
  std::vector<double> samples_;  // [rows compared]
};

}  // namespace kvasir
