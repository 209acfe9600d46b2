#include "model/mixers/mamba2.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "backend/wide_vectors.h"
#include "base/check.h"
#include "model/mixers/elements.h"

namespace kvasir {
namespace {

constexpr int kChannels = 64;  // of a part of the convolution
constexpr int kSlices = 16;    // of the rows that are normalised
constexpr int kLanes = 16;     // sums of squares that run beside each other

// out = the tap's products of `channels` channels, over what came before, [before][stride], and x; x moves to its end.
KVASIR_WIDE_VECTORS void convolve_row(const float* __restrict taps, float* __restrict past, int before, int stride,
                                      int channels, const float* __restrict x, float* __restrict out) {
  for (int i = 0; i < before; ++i) {
    float* const row = past + static_cast<std::ptrdiff_t>(i) * stride;
    for (int c = 0; c < channels; ++c) out[c] += taps[i * kChannels + c] * row[c];
    if (i + 1 == before) break;
    for (int c = 0; c < channels; ++c) row[c] = row[c + stride];
  }
  float* const last = past + static_cast<std::ptrdiff_t>(before - 1) * stride;
  for (int c = 0; c < channels; ++c) {
    out[c] += taps[before * kChannels + c] * x[c];
    last[c] = x[c];
  }
}

// S = decay S + B x'; out = S'C. S is [state][dim]. Two rows of S at a time, so that `out` is loaded half as often.
KVASIR_WIDE_VECTORS void decay_write_read(float* __restrict s, float decay, const float* __restrict b,
                                          const float* __restrict c, const float* __restrict x, int state, int dim,
                                          float* __restrict out) {
  for (int v = 0; v < dim; ++v) out[v] = 0;
  int n = 0;
  for (; n + 1 < state; n += 2, s += 2 * static_cast<std::ptrdiff_t>(dim))
    for (int v = 0; v < dim; ++v) {
      s[v] = s[v] * decay + b[n] * x[v];
      s[dim + v] = s[dim + v] * decay + b[n + 1] * x[v];
      out[v] = (out[v] + s[v] * c[n]) + s[dim + v] * c[n + 1];
    }
  for (int v = 0; v < dim && n < state; ++v) {
    s[v] = s[v] * decay + b[n] * x[v];
    out[v] += s[v] * c[n];
  }
}

// e^x, to about the precision of a float, for |x| up to 87; beyond it that of the bound. In operations that loops of
// any width do alike.
[[gnu::always_inline]] inline float exponential(float x) {
  constexpr float kRound = 12582912;  // 1.5 * 2^23: adding and subtracting it rounds to a whole number
  const float within = x > -87.0F ? (x < 87.0F ? x : 87.0F) : -87.0F;  // of NaN too, which the sum below brings back
  const float power = (within * 1.44269504F + kRound) - kRound;
  x = x == x ? within : x;
  const float rest = (x - power * 0.693359375F) + power * 2.12194440e-4F;  // x - power ln 2, ln 2 in two parts
  float sum = 1.9875691500e-4F;
  sum = sum * rest + 1.3981999507e-3F;
  sum = sum * rest + 8.3334519073e-3F;
  sum = sum * rest + 4.1665795894e-2F;
  sum = sum * rest + 1.6666665459e-1F;
  sum = sum * rest + 5.0000001201e-1F;
  sum = sum * rest * rest + rest + 1;
  return sum * std::bit_cast<float>((static_cast<std::int32_t>(power) + 127) << 23);
}

KVASIR_WIDE_VECTORS void multiply_by_silu(const float* __restrict x, const float* __restrict z, int n,
                                          float* __restrict out) {
  for (int i = 0; i < n; ++i) out[i] = x[i] * (z[i] / (1 + exponential(-z[i])));
}

KVASIR_WIDE_VECTORS void apply_silu(const float* __restrict z, int n, float* __restrict out) {
  for (int i = 0; i < n; ++i) out[i] = z[i] / (1 + exponential(-z[i]));
}

KVASIR_WIDE_VECTORS float mean_square(const float* x, int n) {
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int v = 0; v < kLanes; ++v) lanes[v] += x[i + v] * x[i + v];
  for (int v = 0; i < n; ++i, ++v) lanes[v] += x[i] * x[i];
  float sum = 0;
  for (int v = 0; v < kLanes; ++v) sum += lanes[v];
  return sum / static_cast<float>(n);
}

std::size_t whole_lines(std::size_t floats) {
  constexpr std::size_t kLine = 16;  // floats of a cache line
  return (floats + kLine - 1) / kLine * kLine;
}

}  // namespace

Mamba2::Mamba2(const Sizes& sizes, float eps) : sizes_(sizes), eps_(eps) {
  KVASIR_CHECK(sizes.groups > 0 && sizes.heads > 0 && sizes.heads % sizes.groups == 0);
  KVASIR_CHECK(sizes.taps >= 2 && sizes.taps <= kMostTaps);
  inputs_ = {output() + channels() + sizes.heads};
}

std::string Mamba2::arithmetic_id() const {
  return fmt::format("mamba2-1-{}-{}-{}-{}-{}", sizes_.heads, sizes_.head_dim, sizes_.groups, sizes_.state,
                     sizes_.taps);
}

std::size_t Mamba2::past_floats() const {
  return whole_lines(static_cast<std::size_t>(sizes_.taps - 1) * static_cast<std::size_t>(channels()));
}

std::size_t Mamba2::matrix_floats() const {
  return whole_lines(static_cast<std::size_t>(sizes_.state) * static_cast<std::size_t>(sizes_.head_dim));
}

std::size_t Mamba2::state_bytes() const {
  return (past_floats() + static_cast<std::size_t>(sizes_.heads) * matrix_floats()) * sizeof(float);
}

int Mamba2::parts(int step) const {
  return step == 0 ? (channels() + kChannels - 1) / kChannels : step == 1 ? sizes_.heads : kSlices;
}

void Mamba2::advance(int step, int part, const Rows& rows, std::byte* state) const {
  auto* const past = reinterpret_cast<float*>(state);
  if (step == 0) return convolve(part, rows, past);
  if (step == 1) return scan(part, rows, past + past_floats() + static_cast<std::size_t>(part) * matrix_floats());
  normalize(part, rows);
}

float* Mamba2::input_row(const Rows& rows, int row) const {
  return rows.inputs[0] + static_cast<std::ptrdiff_t>(row) * inputs_[0];
}

void Mamba2::convolve(int part, const Rows& rows, float* past) const {
  constexpr std::size_t kBias = 5;
  const int taps = sizes_.taps, first = part * kChannels, count = std::min(kChannels, channels() - first);
  float across[kMostTaps * kChannels];  // [taps][kChannels]
  for (int c = 0; c < count; ++c)
    for (int i = 0; i < taps; ++i) across[i * kChannels + c] = rows.parameters[0][(first + c) * taps + i];
  float bias[kChannels] = {}, sums[kChannels];
  if (rows.parameters.size() > kBias) std::copy_n(rows.parameters[kBias] + first, count, bias);
  for (int row = 0; row < rows.count; ++row) {
    float* const x = input_row(rows, row) + output() + first;
    std::copy_n(bias, count, sums);
    convolve_row(across, past + first, taps - 1, channels(), count, x, sums);
    apply_silu(sums, count, x);
  }
}

void Mamba2::scan(int head, const Rows& rows, float* matrix) const {
  const int dim = sizes_.head_dim, inner = output(), all = sizes_.groups * sizes_.state;
  const int group = head / (sizes_.heads / sizes_.groups);
  const float dt_bias = rows.parameters[1][head], a = rows.parameters[2][head], d = rows.parameters[3][head];
  thread_local std::vector<float> scratch;
  scratch.resize(static_cast<std::size_t>(2 * dim));
  float* const scaled = scratch.data();  // t x
  float* const read = scaled + dim;
  for (int row = 0; row < rows.count; ++row) {
    const float* in = input_row(rows, row);
    const float* z = in + head * dim;
    const float* x = in + inner + head * dim;
    const float* b = in + 2 * inner + group * sizes_.state;
    const float t = softplus(in[2 * inner + 2 * all + head] + dt_bias);
    for (int v = 0; v < dim; ++v) scaled[v] = t * x[v];
    decay_write_read(matrix, std::exp(a * t), b, b + all, scaled, sizes_.state, dim, read);
    float* const out = rows.output + static_cast<std::ptrdiff_t>(row) * inner + head * dim;
    for (int v = 0; v < dim; ++v) read[v] += d * x[v];
    multiply_by_silu(read, z, dim, out);
  }
}

void Mamba2::normalize(int part, const Rows& rows) const {
  const int width = output() / sizes_.groups;
  for (int row = part; row < rows.count; row += kSlices) {
    float* out = rows.output + static_cast<std::ptrdiff_t>(row) * output();
    const float* weights = rows.parameters[4];
    for (int group = 0; group < sizes_.groups; ++group, out += width, weights += width) {
      const float factor = 1 / std::sqrt(mean_square(out, width) + eps_);
      for (int v = 0; v < width; ++v) out[v] = out[v] * factor * weights[v];
    }
  }
}

}  // namespace kvasir
