// Sums over scored tokens and timed passes, from which an evaluation's figures are computed. Thread-safety: plain
// values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sequence/sequence_runner.h"

namespace kvasir {

struct ScoredToken {
  std::int64_t position = 0;  // in its stream or window
  double nll = 0;
  double kept = 0;        // tokens seen by the row that predicted it
  double dead_share = 0;  // of that pass
  std::optional<double> kld;
  bool top1_agree = false;
};

// Divides the positions [begin, end) into `count` equal bins.
struct PositionBins {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count = 0;

  // REQUIRES: begin <= position < end; count > 0.
  std::size_t of(std::int64_t position) const {
    return static_cast<std::size_t>((position - begin) * count / (end - begin));
  }
};

struct PerplexitySums {
  struct Bin {
    std::int64_t tokens = 0;
    double position = 0;
    double nll = 0;
    double kld = 0;
    double kept = 0;
  };

  std::int64_t tokens = 0;
  double nll = 0;
  double nll_squares = 0;
  double kept = 0;
  double dead_share = 0;
  double encodings = 0;  // over the tokens retained at the end of each stream or window
  std::int64_t encoded = 0;
  std::int64_t agreed = 0;
  bool keeps_nlls = false;
  std::vector<double> nlls;  // [tokens], in the order in which they were scored; empty unless kept
  std::vector<double> klds;  // [tokens], or empty without a comparison
  PositionBins positions;
  std::vector<Bin> bins;  // [positions.count]

  std::vector<double> pass_ms;  // per pass: milliseconds per token
  StepTimes times;
  std::int64_t timed_tokens = 0;

  void add(const ScoredToken& token);
  // REQUIRES: the same positions.
  void add(const PerplexitySums& other);
};

}  // namespace kvasir
