// A model family of the tests, with layers that hold a state: a short convolution, whose sums decay from token to
// token, behind a gate. It has what real ones have: inputs and parameters of its own, a window of past inputs, a
// running sum.
//
//   c(t) = taps[0] u(t) + taps[1] u(t-1) + taps[2] u(t-2);  s(t) = f s(t-1) + c(t);  y(t) = s(t) silu(g(t))
//   of each channel, with f = logistic(decay + 3)
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "model/family.h"

namespace kvasir::test {

class DecayMixer final : public StateMixer {
 public:
  explicit DecayMixer(int channels) : inputs_{channels, channels} {}

  std::string arithmetic_id() const override { return "decay-1-" + std::to_string(inputs_[0]); }
  std::span<const int> inputs() const override { return inputs_; }
  int output() const override { return inputs_[0]; }
  std::size_t state_bytes() const override { return static_cast<std::size_t>(inputs_[0]) * sizeof(Channel); }
  int parts(int /*step*/) const override { return (inputs_[0] + kPart - 1) / kPart; }
  void advance(int /*step*/, int part, const Rows& rows, std::byte* state) const override {
    const int channels = inputs_[0];
    auto* const states = reinterpret_cast<Channel*>(state);
    for (int c = part * kPart; c < std::min(channels, (part + 1) * kPart); ++c) {
      const float* taps = rows.parameters[0] + 3 * c;
      const float factor = 1 / (1 + std::exp(-rows.parameters[1][c] - 3));
      Channel& s = states[c];
      for (int row = 0; row < rows.count; ++row) {
        const int at = row * channels + c;
        const float input = rows.inputs[0][at], gate = rows.inputs[1][at];
        s.sum = factor * s.sum + (taps[0] * input + taps[1] * s.past[0] + taps[2] * s.past[1]);
        s.past[1] = s.past[0];
        s.past[0] = input;
        rows.output[at] = s.sum * (gate / (1 + std::exp(-gate)));
      }
    }
  }

 private:
  static constexpr int kPart = 8;  // channels
  struct Channel {
    float past[2];
    float sum;
  };
  std::array<int, 2> inputs_;
};

inline Status adjust_decay(Keys& keys, ModelConfig* model) {
  std::int64_t window = 0;
  if (keys.has("attention.sliding_window")) window = static_cast<std::int64_t>(*keys.count("attention.sliding_window"));
  // Unless all layers have the window, the last one sees all tokens.
  const bool all = *keys.positive_or("attention.sliding_window_pattern", 1, 0) == 1;
  for (std::size_t l = 0; l < model->layers.size(); ++l) {
    LayerSpec& layer = model->layers[l];
    const std::string key = "state_channels." + std::to_string(l);
    std::uint64_t channels = 0;
    if (keys.has(key)) channels = *keys.count(key);
    if (channels > 0)
      layer.state = StateSpec{.mixer = std::make_shared<DecayMixer>(static_cast<int>(channels)),
                              .inputs = {"mix_input", "mix_gate"},
                              .output = "mix_output",
                              .parameters = {{"mix_taps", {3, channels}}, {"mix_decay", {channels}}}};
    if (all || l + 1 < model->layers.size()) layer.attention.window = window;
  }
  return {};
}

// The families that are built in, and this one.
inline std::span<const Family* const> families_with_decay() {
  static const Family decay{.name = "decay", .adjust = adjust_decay};
  static const std::vector<const Family*> all = [] {
    std::vector<const Family*> list(families().begin(), families().end());
    list.push_back(&decay);
    return list;
  }();
  return all;
}

}  // namespace kvasir::test
