// The specification of every kernel, in plain C++. Loops run over 16 outputs or slots, for compilers to vectorise.
#include "backend/cpu/kernels/generic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/kernels/pages/decode_page.h"
#include "backend/cpu/kernels/pages/encode_page.h"
#include "backend/cpu/kernels/pages/word_page.h"

namespace kvasir {
namespace {

template <DType kType>
void load_panel_input(const std::byte* p, float* w) {
  if constexpr (kType == DType::kF32) {
    std::memcpy(w, p, kPanel * sizeof(float));
  } else {
    std::uint16_t bits[kPanel];
    std::memcpy(bits, p, sizeof bits);
    for (int o = 0; o < kPanel; ++o) w[o] = kType == DType::kF16 ? f16_to_f32(bits[o]) : bf16_to_f32(bits[o]);
  }
}

template <DType kType>
void multiply_panel(const PackedMatrix& weights, const Activations& x, int panel, float* out, std::size_t out_stride,
                    int lanes) {
  constexpr int kRows = 4;
  constexpr std::size_t kStep = kPanel * (kType == DType::kF32 ? 4 : 2);
  for (int r0 = 0; r0 < x.rows; r0 += kRows) {
    const int rows = std::min(kRows, x.rows - r0);
    float sum[kRows][kPanel] = {};
    const std::byte* p = weights.data + static_cast<std::size_t>(panel) * weights.panel_bytes();
    for (int i = 0; i < weights.inputs; ++i, p += kStep) {
      float w[kPanel];
      load_panel_input<kType>(p, w);
      for (int r = 0; r < rows; ++r) {
        const float a = x.f32[static_cast<std::size_t>(r0 + r) * static_cast<std::size_t>(x.inputs) + i];
        for (int o = 0; o < kPanel; ++o) sum[r][o] += w[o] * a;
      }
    }
    for (int r = 0; r < rows; ++r)
      std::memcpy(out + static_cast<std::size_t>(r0 + r) * out_stride + panel * kPanel, sum[r],
                  static_cast<std::size_t>(lanes) * sizeof(float));
  }
}

template <DType kType>
void matmul_float(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                  std::size_t out_stride) {
  for (int panel = panel_begin; panel < panel_end; ++panel)
    multiply_panel<kType>(weights, x, panel, out, out_stride, std::min(kPanel, weights.outputs - panel * kPanel));
}

void matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
            std::size_t out_stride) {
  switch (weights.type) {
    case DType::kF32: return matmul_float<DType::kF32>(weights, x, panel_begin, panel_end, out, out_stride);
    case DType::kF16: return matmul_float<DType::kF16>(weights, x, panel_begin, panel_end, out, out_stride);
    case DType::kBF16: return matmul_float<DType::kBF16>(weights, x, panel_begin, panel_end, out, out_stride);
    default: return generic::quantized_matmul(weights, x, panel_begin, panel_end, out, out_stride);
  }
}

void quantize_block(const float* x, const MutableQ8Rows& to) {
  float largest = 0;
  bool finite = true;
  for (int i = 0; i < kQ8Block; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  const float inverse = finite && largest >= kQ8Smallest ? 127.0F / largest : 0.0F;
  std::int32_t sums[2] = {0, 0};
  for (int i = 0; i < kQ8Block; ++i) {
    to.quants[i] = finite ? static_cast<std::int8_t>(std::nearbyint(x[i] * inverse)) : std::int8_t{0};
    sums[i / 16] += to.quants[i];
  }
  *to.scale = finite ? largest / 127.0F : std::numeric_limits<float>::quiet_NaN();
  *to.scaled_sum = *to.scale * static_cast<float>(sums[0] + sums[1]);
  *to.sum = -128 * (sums[0] + sums[1]);
  to.half_sum[0] = -128 * sums[0];
  to.half_sum[1] = -128 * sums[1];
}

void quantize_q8(const float* x, int inputs, const MutableQ8Rows& place) {
  for (int b = 0; b < inputs / kQ8Block; ++b)
    quantize_block(x + b * kQ8Block, place.at(static_cast<std::size_t>(b) * kRowGroup));
}

// Sums 16 lanes by halves of 8, 4, 2, 1: the order of every table.
float sum16(const float* lanes) {
  float s[16];
  std::copy(lanes, lanes + 16, s);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) s[i] += s[i + width];
  return s[0];
}

void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
  float lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  const float inverse = 1.0F / std::sqrt(sum16(lanes) / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) out[i] = weight != nullptr ? x[i] * inverse * weight[i] : x[i] * inverse;
}

void layer_norm(const float* x, const float* weight, const float* bias, int n, float eps, float* out) {
  float lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i % 16] += x[i];
  const float mean = sum16(lanes) / static_cast<float>(n);
  std::fill(lanes, lanes + 16, 0.0F);
  for (int i = 0; i < n; ++i) lanes[i % 16] = std::fma(x[i] - mean, x[i] - mean, lanes[i % 16]);
  const float inverse = 1.0F / std::sqrt(sum16(lanes) / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) out[i] = (x[i] - mean) * inverse * weight[i] + (bias != nullptr ? bias[i] : 0.0F);
}

float silu(float x) {
  return x / (1.0F + std::exp(-x));
}

float sigmoid(float x) {
  return 1.0F / (1.0F + std::exp(-x));
}

float gelu(float x) {
  return x * 0.5F * std::erfc(x * -0.70710678F);
}

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)).
float gelu_tanh(float x) {
  return x / (1.0F + std::exp(x * (x * x * -0.0713548163F - 1.59576912F)));
}

template <float kFunction(float)>
void activate_by(const float* x, const float* factor, int n, float* out) {
  for (int i = 0; i < n; ++i) out[i] = factor != nullptr ? kFunction(x[i]) * factor[i] : kFunction(x[i]);
}

void clamped_swiglu(const float* x, const float* factor, int n, float* out) {
  for (int i = 0; i < n; ++i) {
    const float gate = std::min(x[i], kSwigluLimit);
    out[i] =
        gate / (1.0F + std::exp(-kSwigluSlope * gate)) * (std::clamp(factor[i], -kSwigluLimit, kSwigluLimit) + 1.0F);
  }
}

void activate(ActivationFunction function, const float* x, const float* factor, int n, float* out) {
  switch (function) {
    case ActivationFunction::kSilu: return activate_by<silu>(x, factor, n, out);
    case ActivationFunction::kGelu: return activate_by<gelu>(x, factor, n, out);
    case ActivationFunction::kGeluTanh: return activate_by<gelu_tanh>(x, factor, n, out);
    case ActivationFunction::kSigmoid: return activate_by<sigmoid>(x, factor, n, out);
    case ActivationFunction::kClampedSwiglu: return clamped_swiglu(x, factor, n, out);
  }
}

void add(float* x, const float* y, int n) {
  for (int i = 0; i < n; ++i) x[i] += y[i];
}

void rope(const float* x, int heads, int head_dim, int rotary, const float* cosine, const float* sine, float scale,
          float* out) {
  for (int h = 0; h < heads; ++h, x += head_dim, out += head_dim) {
    for (int i = 0; i < rotary / 2; ++i) {
      const float a = x[2 * i];
      const float b = x[2 * i + 1];
      out[2 * i] = (a * cosine[i] - b * sine[i]) * scale;
      out[2 * i + 1] = (a * sine[i] + b * cosine[i]) * scale;
    }
    for (int i = rotary; i < head_dim; ++i) out[i] = x[i] * scale;
  }
}

void store_kv(const PageFormat& shape, std::byte* page, int slot, const float* key, const float* value) {
  if (shape.key == KvType::kI16) return store_words(shape, page, slot, key, value);
  const std::size_t key_size = kv_type_bytes(shape.key);
  const std::size_t value_size = kv_type_bytes(shape.value);
  std::byte* values = page + values_offset(shape) + static_cast<std::size_t>(slot) * value_bytes(shape);
  for (int d = 0; d < shape.head_dim; ++d) {
    store_element(shape.key, page + static_cast<std::size_t>(d * shape.slots + slot) * key_size, key[d]);
    if (!shape.latent) store_element(shape.value, values + static_cast<std::size_t>(d) * value_size, value[d]);
  }
}

void rotate_keys(const PageFormat& shape, std::byte* page, SlotMask slots, int rotary, const float* cosine,
                 const float* sine) {
  if (shape.key == KvType::kI16) return rotate_words(shape, page, slots, rotary, cosine, sine);
  const std::size_t size = kv_type_bytes(shape.key);
  for (int i = 0; i < rotary / 2; ++i) {
    std::byte* row_a = page + static_cast<std::size_t>(2 * i * shape.slots) * size;
    std::byte* row_b = row_a + static_cast<std::size_t>(shape.slots) * size;
    for (int s = 0; s < shape.slots; ++s) {
      if ((slots >> s & 1) == 0) continue;
      const float a = plain_element(shape.key, row_a + static_cast<std::size_t>(s) * size);
      const float b = plain_element(shape.key, row_b + static_cast<std::size_t>(s) * size);
      store_element(shape.key, row_a + static_cast<std::size_t>(s) * size, a * cosine[i] - b * sine[i]);
      store_element(shape.key, row_b + static_cast<std::size_t>(s) * size, a * sine[i] + b * cosine[i]);
    }
  }
}

void move_slots(const PageFormat& shape, const std::byte* from, SlotMask from_slots, std::byte* to, int to_slot,
                int rotary, const float* cosine, const float* sine) {
  if (shape.key == KvType::kI16) return move_words(shape, from, from_slots, to, to_slot, rotary, cosine, sine);
  const std::size_t size = kv_type_bytes(shape.key);
  const auto key = [&](auto* page, int d, int slot) {
    return page + static_cast<std::size_t>(d * shape.slots + slot) * size;
  };
  for (SlotMask left = from_slots; left != 0; left &= left - 1, ++to_slot) {
    const int slot = std::countr_zero(left);
    const int rotated = cosine != nullptr ? rotary : 0;
    for (int d = 0; d < rotated; d += 2) {
      const float a = plain_element(shape.key, key(from, d, slot));
      const float b = plain_element(shape.key, key(from, d + 1, slot));
      store_element(shape.key, key(to, d, to_slot), a * cosine[d / 2] - b * sine[d / 2]);
      store_element(shape.key, key(to, d + 1, to_slot), a * sine[d / 2] + b * cosine[d / 2]);
    }
    for (int d = rotated; d < shape.head_dim; ++d) std::memmove(key(to, d, to_slot), key(from, d, slot), size);
    std::memmove(to + values_offset(shape) + static_cast<std::size_t>(to_slot) * value_bytes(shape),
                 from + values_offset(shape) + static_cast<std::size_t>(slot) * value_bytes(shape), value_bytes(shape));
  }
}

void open_latent(const PageFormat& format, const std::byte* page, float* out) {
  decode_keys(format, page, out);
  float* const values = out + format.head_dim * format.slots;
  for (int s = 0; s < format.slots; ++s)
    for (int d = 0; d < format.head_dim; ++d) values[s * format.head_dim + d] = out[d * format.slots + s];
}

void merge(const AttentionState& into, const AttentionState& from, int queries, int head_dim) {
  for (int query = 0; query < queries; ++query) {
    if (from.sum[query] == 0) continue;
    const float highest = std::max(into.maximum[query], from.maximum[query]);
    const float keep = std::exp(into.maximum[query] - highest);
    const float take = std::exp(from.maximum[query] - highest);
    const auto at = static_cast<std::size_t>(query) * static_cast<std::size_t>(head_dim);
    for (int d = 0; d < head_dim; ++d)
      into.weighted[at + d] = into.weighted[at + d] * keep + from.weighted[at + d] * take;
    into.sum[query] = into.sum[query] * keep + from.sum[query] * take;
    into.maximum[query] = highest;
  }
}

void finish(const AttentionState& state, int queries, int head_dim, float* out) {
  for (int query = 0; query < queries; ++query) {
    const float inverse = state.sum[query] > 0 ? 1.0F / state.sum[query] : 0.0F;
    const auto at = static_cast<std::size_t>(query) * static_cast<std::size_t>(head_dim);
    for (int d = 0; d < head_dim; ++d) out[at + d] = state.weighted[at + d] * inverse;
  }
}

int observe_weights(const ObservedQuery& query) {
  int count = 0;
  for (int e = 0; e < query.entries; ++e) {
    if (query.masks[e] == 0) continue;
    const float scale = std::exp(query.weight_maxima[e] - query.maximum) / query.sum;
    for (SlotMask left = query.masks[e]; left != 0; left &= left - 1)
      query.weights[count++] = query.weights[e * query.slots + std::countr_zero(left)] * scale;
  }
  return count;
}

void score_segments(const float* bounds, const float* queries, int group, int head_dim, float* best) {
  std::fill_n(best, kScoredSegments, -std::numeric_limits<float>::infinity());
  for (int g = 0; g < group; ++g, queries += head_dim) {
    float sum[kScoredSegments] = {};
    for (int d = 0; d < head_dim; ++d) {
      const float* side = bounds + (2 * d + (queries[d] >= 0 ? 1 : 0)) * kScoredSegments;
      for (int i = 0; i < kScoredSegments; ++i) sum[i] += queries[d] * side[i];
    }
    for (int i = 0; i < kScoredSegments; ++i) best[i] = sum[i] > best[i] || std::isnan(sum[i]) ? sum[i] : best[i];
  }
}

double sum_weights(const float* weights, int n) {
  double s[16] = {};
  for (int i = 0; i < n; ++i) s[i % 16] += static_cast<double>(weights[i]);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) s[i] += s[i + width];
  return s[0];
}

void add_weights(const float* weights, int n, double factor, double* mass) {
  for (int i = 0; i < n; ++i) mass[i] += factor * static_cast<double>(weights[i]);
}

}  // namespace

const KernelTable& generic_kernels() {
  static constexpr KernelTable table{"generic",
                                     "generic",
                                     false,  // rounds_bf16_rows
                                     0.0F,   // attention_rounding
                                     false,  // prefers_words
                                     &kPanelPacking,
                                     matmul,
                                     quantize_q8,
                                     rms_norm,
                                     layer_norm,
                                     activate,
                                     add,
                                     rope,
                                     store_kv,
                                     rotate_keys,
                                     move_slots,
                                     open_latent,
                                     generic::attend,
                                     generic::attend_gathered,
                                     merge,
                                     finish,
                                     observe_weights,
                                     score_segments,
                                     sum_weights,
                                     add_weights};
  return table;
}

}  // namespace kvasir
