// Gated DeltaNet (Yang et al., arXiv 2412.06464, equation 10) as Qwen 3.5 has it. Queries, keys and values of a token
// go through a causal convolution of each channel and SiLU; queries and keys are then normalised to length 1, and
// queries divided by sqrt(key_dim). Of each value head, with the key head h mod key_heads:
//   S = exp(a softplus(alpha + dt)) S;  S += k (beta (v - S'k))';  o = S'q;  y = rms_norm(o) silu(z)
// where beta is behind a logistic function. S is [key_dim][value_dim].
// Inputs: [queries, keys, values], z, beta, alpha. Parameters: the convolution's taps [channels][taps], dt
// [value_heads], a [value_heads], the norm's weights [value_dim]. Thread-safety: const.
#pragma once

#include <array>

#include "backend/state_mixer.h"

namespace kvasir {

class GatedDeltaNet final : public StateMixer {
 public:
  struct Sizes {
    int key_heads = 0;
    int value_heads = 0;  // a multiple of key_heads
    int key_dim = 0;      // of a head
    int value_dim = 0;
    int taps = 0;  // of the convolution: 2 to kMostTaps
  };
  static constexpr int kMostTaps = 16;
  explicit GatedDeltaNet(const Sizes& sizes, float eps);

  std::string arithmetic_id() const override;
  std::span<const int> inputs() const override { return inputs_; }
  int output() const override { return sizes_.value_heads * sizes_.value_dim; }
  std::size_t state_bytes() const override;
  // One for each key head, with its value heads.
  int parts(int /*step*/) const override { return sizes_.key_heads; }
  void advance(int /*step*/, int part, const Rows& rows, std::byte* state) const override;

  int channels() const { return 2 * sizes_.key_heads * sizes_.key_dim + output(); }

 private:
  // Floats of one part's state: the convolution's past inputs [taps - 1][part_channels()], then S of each value head.
  std::size_t part_floats() const;
  int heads_of_part() const { return sizes_.value_heads / sizes_.key_heads; }
  int part_channels() const { return 2 * sizes_.key_dim + heads_of_part() * sizes_.value_dim; }

  Sizes sizes_;
  float eps_;
  std::array<int, 4> inputs_;
};

}  // namespace kvasir
