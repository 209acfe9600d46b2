// The short convolution of LFM2 (Liquid AI 2025): of each channel, with B, C and x from one matrix,
//   u(t) = B(t) x(t);  y(t) = C(t) sum over i of taps[i] u(t - (n - 1) + i)
// Input: [B, C, x], each `width` floats. Parameter: the taps, [width][n]. State: the last n - 1 u of each channel.
// Thread-safety: const.
#pragma once

#include <array>

#include "backend/state_mixer.h"

namespace kvasir {

class ShortConvolution final : public StateMixer {
 public:
  // REQUIRES: taps of 2 to kMostTaps.
  ShortConvolution(int width, int taps);
  static constexpr int kMostTaps = 16;

  std::string arithmetic_id() const override;
  std::span<const int> inputs() const override { return inputs_; }
  int output() const override { return width_; }
  std::size_t state_bytes() const override;
  int parts(int /*step*/) const override { return (width_ + kPart - 1) / kPart; }
  void advance(int /*step*/, int part, const Rows& rows, std::byte* state) const override;

 private:
  static constexpr int kPart = 256;  // channels
  int width_, taps_;
  std::array<int, 1> inputs_;
};

}  // namespace kvasir
