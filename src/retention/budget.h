// How many tokens a table may hold: a number, or a share of the tokens seen so far.
// Thread-safety: values.
#pragma once

#include <cstdint>

namespace kvasir {

struct Budget {
  static constexpr std::int64_t kWhole = 1'000'000;

  std::int64_t tokens = 0;
  std::int64_t millionths = 0;  // of the tokens seen so far; 0: `tokens` counts

  bool is_share() const { return millionths > 0; }

  // The budget once `seen` tokens have come; a share is rounded up.
  std::int64_t at(std::int64_t seen) const {
    if (!is_share()) return tokens;
    // In two parts, so that it does not overflow for any number of tokens.
    return seen / kWhole * millionths + (seen % kWhole * millionths + kWhole - 1) / kWhole;
  }
};

}  // namespace kvasir
