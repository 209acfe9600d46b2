// Mamba-2 (Dao and Gu, arXiv 2405.21060). x, B and C of a token go through a causal convolution of each channel, with a
// bias, and SiLU. Of each head, with the B and C of its group, and t = softplus(dt + dt's bias):
//   S = exp(a t) S + B (t x)';  y = (S'C + d x) silu(z)
// The y of each group are then normalised together (RMSNorm). S is [state][head_dim]. Head h is of group
// h / (heads / groups).
// Input: [z, x, B, C, dt], of inner, inner, groups * state, groups * state and heads floats, where inner is heads *
// head_dim. The convolution overwrites x, B and C. Parameters: the convolution's taps [channels][taps], dt's bias
// [heads], a [heads], d [heads], the norm's weights [inner] and, unless the convolution has none, its bias [channels].
// Thread-safety: const.
#pragma once

#include <array>

#include "backend/state_mixer.h"

namespace kvasir {

class Mamba2 final : public StateMixer {
 public:
  struct Sizes {
    int heads = 0;  // a multiple of groups
    int head_dim = 0;
    int groups = 0;
    int state = 0;
    int taps = 0;  // of the convolution: 2 to kMostTaps
  };
  static constexpr int kMostTaps = 16;
  Mamba2(const Sizes& sizes, float eps);

  std::string arithmetic_id() const override;
  std::span<const int> inputs() const override { return inputs_; }
  int output() const override { return sizes_.heads * sizes_.head_dim; }
  std::size_t state_bytes() const override;
  // The convolution, the recurrence, the norm.
  int steps() const override { return 3; }
  int parts(int step) const override;
  void advance(int step, int part, const Rows& rows, std::byte* state) const override;

  int channels() const { return output() + 2 * sizes_.groups * sizes_.state; }

 private:
  void convolve(int part, const Rows& rows, float* past) const;
  void scan(int head, const Rows& rows, float* matrix) const;
  void normalize(int part, const Rows& rows) const;
  float* input_row(const Rows& rows, int row) const;
  // A state: the convolution's past inputs [taps - 1][channels()], oldest first, then S of each head. Each begins at a
  // cache line.
  std::size_t past_floats() const;
  std::size_t matrix_floats() const;

  Sizes sizes_;
  float eps_;
  std::array<int, 1> inputs_;
};

}  // namespace kvasir
