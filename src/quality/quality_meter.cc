#include "quality/quality_meter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "quality/divergence.h"

namespace kvasir {
namespace {

// Rows of the first check, which has one more than any other.
std::int64_t most_rows(const QualityOptions& options) {
  return options.every / options.stride + 1;
}

}  // namespace

QualityMeter::QualityMeter(const QualityOptions& options, std::int64_t prompt, int vocabulary, MemoryBudget* budget)
    : options_(options), prompt_(prompt), vocabulary_(static_cast<std::size_t>(vocabulary)), charge_(budget) {
  begin_check(options.every);
}

std::uint64_t QualityMeter::bytes(const QualityOptions& options, int vocabulary) {
  return static_cast<std::uint64_t>(most_rows(options)) * static_cast<std::uint64_t>(vocabulary) * sizeof(float);
}

void QualityMeter::begin_check(std::int64_t generated) {
  const std::int64_t before = generated - options_.every;
  generated_ = generated;
  first_ = before == 0 ? 0 : before / options_.stride + 1;
  rows_ = generated / options_.stride - first_ + 1;
  captured_ = 0;
  samples_.clear();
}

bool QualityMeter::open() {
  if (is_open()) return true;
  if (!charge_.try_resize(bytes(options_, static_cast<int>(vocabulary_)))) return false;
  logits_.resize(static_cast<std::size_t>(most_rows(options_)) * vocabulary_);
  return true;
}

void QualityMeter::close() {
  logits_ = {};
  KVASIR_CHECK(charge_.try_resize(0));
  captured_ = 0;
  samples_.clear();
}

std::optional<std::int64_t> QualityMeter::from(std::int64_t index, std::int64_t row) const {
  if (index == rows_ || row_of(index) < row) return {};
  return row_of(index);
}

std::optional<std::int64_t> QualityMeter::row_to_capture(std::int64_t row) const {
  return from(captured_, row);
}

std::span<float> QualityMeter::kept(std::int64_t index) {
  return std::span(logits_).subspan(static_cast<std::size_t>(index) * vocabulary_, vocabulary_);
}

void QualityMeter::capture(std::int64_t row, std::span<const float> logits) {
  KVASIR_CHECK(is_open() && row_to_capture(0) == row && logits.size() == vocabulary_);
  std::ranges::copy(logits, kept(captured_).begin());
  ++captured_;
}

std::optional<std::int64_t> QualityMeter::row_to_compare(std::int64_t row) const {
  return from(std::ssize(samples_), row);
}

void QualityMeter::compare(std::int64_t row, std::span<const float> logits) {
  KVASIR_CHECK(captured_all() && row_to_compare(0) == row);
  samples_.push_back(compare_logits(logits, kept(std::ssize(samples_))).kld);
}

std::vector<double> QualityMeter::end_check() {
  KVASIR_CHECK(compared_all());
  std::vector<double> samples = std::exchange(samples_, {});
  begin_check(generated_ + options_.every);
  return samples;
}

}  // namespace kvasir
