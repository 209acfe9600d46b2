// What passes cost, as measured while they run, and what follows from it: how many prompt rows may join a pass, and
// what it costs to preempt a task. Nothing here decides what a policy keeps. Thread-safety: none; plain values.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace kvasir {

// Seconds of a pass = pass + prompt_row * its prompt rows + generated_row * its other rows. Drawing tokens is part of
// it.
struct PassRates {
  double pass = 0.02;
  double prompt_row = 0.001;
  double generated_row = 0.001;

  double seconds(int prompt_rows, int generated_rows) const {
    return pass + prompt_row * prompt_rows + generated_row * generated_rows;
  }
};

// Fits PassRates to the passes that ran: recursive least squares in which a pass counts for half as much some 35 passes
// later, so that the figures follow the depth of the contexts. Starts from the default PassRates.
class RateEstimator {
 public:
  void note(int prompt_rows, int generated_rows, double seconds);
  // The fit; no figure is below a small positive number.
  PassRates rates() const;
  // How much longer a pass may take than the fit, in seconds: twice the recent mean, over all passes, of how much
  // longer they took. Where half of the passes take longer that is the mean over those.
  double excess() const { return excess_; }
  std::int64_t passes() const { return passes_; }

 private:
  static constexpr std::size_t kTerms = 3;
  std::array<double, kTerms> fit_ = {PassRates().pass, PassRates().prompt_row, PassRates().generated_row};
  std::array<std::array<double, kTerms>, kTerms> covariance_ = {{{1e4, 0, 0}, {0, 1e2, 0}, {0, 0, 1e2}}};
  double excess_ = 0;
  std::int64_t passes_ = 0;
};

// Prompt rows that always may join a pass, so that prompts come to their end under any bound.
inline constexpr int kLeastPromptRows = 8;

// Returns how many prompt rows, of `most`, a pass may run so that it takes no more than `max_itl` seconds, `excess`
// included: all where the bound is 0 or no row is generated, and at least kLeastPromptRows.
int prompt_rows_within(double max_itl, const PassRates& rates, double excess, int generated_rows, int most);

// What it takes to bring a preempted task back.
struct RecomputeWork {
  std::int64_t prompt = 0;
  std::int64_t generated = 0;
  std::int64_t cached = 0;  // of the prompt's first tokens, those that the prefix cache would still hold
  bool by_range = false;    // the policy takes generated tokens in chunks, as it does a prompt's
};

// The two ways to preempt, in seconds; infinity: not possible.
struct PreemptionCost {
  double recompute = 0;
  double swap = std::numeric_limits<double>::infinity();

  double least() const { return recompute < swap ? recompute : swap; }
};

// prompt tokens / prefill rate + generated tokens / (prefill rate for policies by range, decode rate for the others).
// `prompt_rows`: of a pass that reads prompts. REQUIRES: prompt_rows > 0.
PreemptionCost preemption_cost(const RecomputeWork& work, const PassRates& rates, int prompt_rows);

}  // namespace kvasir
