// The measured cost of passes, and what follows from it: how many prompt rows may join a pass, and what it costs to
// preempt a task. Nothing here decides what a policy keeps. Thread-safety: none; plain values.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace kvasir {

// Seconds of a pass = pass + prompt_row * its prompt rows + generated_row * its other rows, drawing tokens included.
struct PassRates {
  double pass = 0.02;
  double prompt_row = 0.001;
  double generated_row = 0.001;

  double seconds(int prompt_rows, int generated_rows) const {
    return pass + prompt_row * prompt_rows + generated_row * generated_rows;
  }
};

// Fits PassRates to the passes that ran, by recursive least squares. A pass's weight halves over some 35 passes, so
// that the rates follow the depth of the contexts. Starts from the default PassRates.
class RateEstimator {
 public:
  void note(int prompt_rows, int generated_rows, double seconds);
  // Returns the fit; no figure is below a small positive number.
  PassRates rates() const;
  // Returns the seconds by which a pass may exceed the fit: twice the recent mean of the excess over all passes. If
  // half of the passes exceed it, that is the mean over those.
  double excess() const { return excess_; }
  std::int64_t passes() const { return passes_; }

 private:
  static constexpr std::size_t kTerms = 3;
  std::array<double, kTerms> fit_ = {PassRates().pass, PassRates().prompt_row, PassRates().generated_row};
  std::array<std::array<double, kTerms>, kTerms> covariance_ = {{{1e4, 0, 0}, {0, 1e2, 0}, {0, 0, 1e2}}};
  double excess_ = 0;
  std::int64_t passes_ = 0;
};

// Prompt rows that may join any pass, so that prompts are read to their end under any bound.
inline constexpr int kLeastPromptRows = 8;

// Returns how many prompt rows, of `most`, a pass may run to take at most `max_itl` seconds, `excess` included: all if
// the bound is 0 or no row is generated, and at least kLeastPromptRows.
int prompt_rows_within(double max_itl, const PassRates& rates, double excess, int generated_rows, int most);

// The work of bringing a preempted task back.
struct RecomputeWork {
  std::int64_t prompt = 0;
  std::int64_t generated = 0;
  std::int64_t cached = 0;  // first prompt tokens that the prefix cache would still hold
  bool by_range = false;    // the policy takes generated tokens in chunks, like a prompt's
};

// Seconds of the two ways to preempt; infinity: not possible.
struct PreemptionCost {
  double recompute = 0;
  double swap = std::numeric_limits<double>::infinity();

  double least() const { return recompute < swap ? recompute : swap; }
};

// Returns prompt tokens / prefill rate + generated tokens / (prefill rate for policies by range, decode rate for
// others). `prompt_rows`: of a pass that reads prompts. REQUIRES: prompt_rows > 0.
PreemptionCost preemption_cost(const RecomputeWork& work, const PassRates& rates, int prompt_rows);

}  // namespace kvasir
