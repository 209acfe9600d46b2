#include "model/mixers/gated_delta_net.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/wide_vectors.h"
#include "base/check.h"
#include "model/mixers/elements.h"

namespace kvasir {
namespace {

// seen = S'k, where S has decayed.
KVASIR_WIDE_VECTORS void decay_and_read(float* __restrict s, float decay, const float* __restrict key, int key_dim,
                                        int value_dim, float* __restrict seen) {
  for (int v = 0; v < value_dim; ++v) seen[v] = 0;
  for (int k = 0; k < key_dim; ++k, s += value_dim)
    for (int v = 0; v < value_dim; ++v) {
      s[v] *= decay;
      seen[v] += s[v] * key[k];
    }
}

// S += k delta'; out = S'q.
KVASIR_WIDE_VECTORS void write_and_read(float* __restrict s, const float* __restrict key, const float* __restrict delta,
                                        const float* __restrict query, int key_dim, int value_dim,
                                        float* __restrict out) {
  for (int v = 0; v < value_dim; ++v) out[v] = 0;
  for (int k = 0; k < key_dim; ++k, s += value_dim)
    for (int v = 0; v < value_dim; ++v) {
      s[v] += key[k] * delta[v];
      out[v] += s[v] * query[k];
    }
}

void scale_to_length(float* x, int n, float eps, float length) {
  float squares = 0;
  for (int i = 0; i < n; ++i) squares += x[i] * x[i];
  const float factor = length / std::sqrt(squares + eps);
  for (int i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(const Sizes& sizes, float eps) : sizes_(sizes), eps_(eps) {
  KVASIR_CHECK(sizes.key_heads > 0 && sizes.value_heads % sizes.key_heads == 0);
  KVASIR_CHECK(sizes.taps >= 2 && sizes.taps <= kMostTaps);
  inputs_ = {channels(), output(), sizes.value_heads, sizes.value_heads};
}

std::string GatedDeltaNet::arithmetic_id() const {
  return fmt::format("gated-delta-net-1-{}-{}-{}-{}-{}", sizes_.key_heads, sizes_.value_heads, sizes_.key_dim,
                     sizes_.value_dim, sizes_.taps);
}

std::size_t GatedDeltaNet::part_floats() const {
  constexpr std::size_t kLine = 16;  // floats of a cache line
  const int matrices = heads_of_part() * sizes_.key_dim * sizes_.value_dim;
  const auto floats = static_cast<std::size_t>((sizes_.taps - 1) * part_channels() + matrices);
  return (floats + kLine - 1) / kLine * kLine;
}

std::size_t GatedDeltaNet::state_bytes() const {
  return static_cast<std::size_t>(sizes_.key_heads) * part_floats() * sizeof(float);
}

void GatedDeltaNet::advance(int /*step*/, int part, const Rows& rows, std::byte* state) const {
  const int key_dim = sizes_.key_dim, value_dim = sizes_.value_dim, before = sizes_.taps - 1;
  const int heads = heads_of_part(), own = part_channels(), keys = sizes_.key_heads * key_dim;
  float* const past = reinterpret_cast<float*>(state) + static_cast<std::size_t>(part) * part_floats();
  float* const matrices = past + before * own;
  thread_local std::vector<float> scratch;
  scratch.resize(static_cast<std::size_t>(2 * own + 2 * value_dim));
  float* const input = scratch.data();   // of this token: the part's query, key, values
  float* const convolved = input + own;  // the same behind the convolution
  float* const delta = convolved + own;  // of a value head
  float* const out = delta + value_dim;
  // The first channel of a run of the part's channels, among all of the input.
  const auto channel_of = [&](int c) {
    if (c < key_dim) return part * key_dim + c;
    if (c < 2 * key_dim) return keys + part * key_dim + c - key_dim;
    const int head = part + (c - 2 * key_dim) / value_dim * sizes_.key_heads;
    return 2 * keys + head * value_dim + (c - 2 * key_dim) % value_dim;
  };
  for (int row = 0; row < rows.count; ++row) {
    const float* all = rows.inputs[0] + static_cast<std::ptrdiff_t>(row) * inputs_[0];
    for (int c = 0; c < own; ++c) {
      const int channel = channel_of(c);
      const float* taps = rows.parameters[0] + channel * sizes_.taps;
      input[c] = all[channel];
      float sum = 0;
      for (int i = 0; i < before; ++i) sum += taps[i] * past[i * own + c];
      sum += taps[before] * input[c];
      convolved[c] = sum * logistic(sum);
    }
    std::copy(past + own, past + before * own, past);
    std::copy_n(input, own, past + (before - 1) * own);
    float* const query = convolved;
    float* const key = convolved + key_dim;
    scale_to_length(query, key_dim, eps_, 1 / std::sqrt(static_cast<float>(key_dim)));
    scale_to_length(key, key_dim, eps_, 1);
    for (int i = 0; i < heads; ++i) {
      const int head = part + i * sizes_.key_heads;
      const auto of_head = [&](std::size_t number) {
        return rows.inputs[number][static_cast<std::ptrdiff_t>(row) * sizes_.value_heads + head];
      };
      const float beta = logistic(of_head(2));
      const float decay = std::exp(rows.parameters[2][head] * softplus(of_head(3) + rows.parameters[1][head]));
      float* const s = matrices + i * key_dim * value_dim;
      const float* value = convolved + 2 * key_dim + i * value_dim;
      decay_and_read(s, decay, key, key_dim, value_dim, delta);
      for (int v = 0; v < value_dim; ++v) delta[v] = (value[v] - delta[v]) * beta;
      write_and_read(s, key, delta, query, key_dim, value_dim, out);
      float squares = 0;
      for (int v = 0; v < value_dim; ++v) squares += out[v] * out[v];
      const float factor = 1 / std::sqrt(squares / static_cast<float>(value_dim) + eps_);
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * output() + head * value_dim;
      for (int v = 0; v < value_dim; ++v) {
        const float z = rows.inputs[1][at + v];
        rows.output[at + v] = out[v] * factor * rows.parameters[3][v] * (z * logistic(z));
      }
    }
  }
}

}  // namespace kvasir
