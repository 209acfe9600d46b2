#include "kernels/avx512/simd.h"

namespace kvasir::avx512 {
namespace {

template <DType kType>
[[gnu::always_inline]] inline __m512 load_weights(const std::byte* p) {
  if constexpr (kType == DType::kF32) return load16<KvType::kF32>(p);
  if constexpr (kType == DType::kF16) return load16<KvType::kF16>(p);
  return load16<KvType::kBF16>(p);
}

[[gnu::always_inline]] inline __mmask16 panel_mask(int outputs, int panel) {
  const int left = outputs - panel * kPanel;
  return left >= kPanel ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << left) - 1);
}

// A tile of kRows rows by kPanels panels; each sum runs over the inputs in order, whatever the tile.
template <DType kType, int kRows, int kPanels>
void float_tile(const PackedMatrix& weights, const float* x, std::size_t x_stride, int panel, float* out,
                std::size_t out_stride) {
  constexpr std::size_t kStep = kPanel * (kType == DType::kF32 ? 4 : 2);
  const std::size_t panel_bytes = static_cast<std::size_t>(weights.inputs) * kStep;
  const std::byte* w = weights.data + static_cast<std::size_t>(panel) * panel_bytes;
  __m512 sum[kRows][kPanels];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p) sum[r][p] = _mm512_setzero_ps();
  for (int i = 0; i < weights.inputs; ++i, w += kStep) {
    __m512 v[kPanels];
    for (int p = 0; p < kPanels; ++p) v[p] = load_weights<kType>(w + static_cast<std::size_t>(p) * panel_bytes);
    for (int r = 0; r < kRows; ++r) {
      const __m512 a = _mm512_set1_ps(x[static_cast<std::size_t>(r) * x_stride + static_cast<std::size_t>(i)]);
      for (int p = 0; p < kPanels; ++p) sum[r][p] = _mm512_fmadd_ps(v[p], a, sum[r][p]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p)
      _mm512_mask_storeu_ps(out + static_cast<std::size_t>(r) * out_stride + (panel + p) * kPanel,
                            panel_mask(weights.outputs, panel + p), sum[r][p]);
}

template <DType kType, int kPanels>
void float_rows(const PackedMatrix& weights, const Activations& x, int panel, float* out, std::size_t out_stride) {
  const auto stride = static_cast<std::size_t>(x.inputs);
  int r = 0;
  const auto at = [&](int row) { return x.f32 + static_cast<std::size_t>(row) * stride; };
  const auto to = [&](int row) { return out + static_cast<std::size_t>(row) * out_stride; };
  constexpr int kRows = kPanels == 8 ? 1 : 8;
  for (; r + kRows <= x.rows; r += kRows)
    float_tile<kType, kRows, kPanels>(weights, at(r), stride, panel, to(r), out_stride);
  if constexpr (kPanels <= 2)
    for (; r + 4 <= x.rows; r += 4) float_tile<kType, 4, kPanels>(weights, at(r), stride, panel, to(r), out_stride);
  for (; r < x.rows; ++r) float_tile<kType, 1, kPanels>(weights, at(r), stride, panel, to(r), out_stride);
}

template <DType kType>
void float_matmul(const PackedMatrix& weights, const Activations& x, int panel, int panel_end, float* out,
                  std::size_t out_stride) {
  // One row: eight panels at once, so that eight sums hide the latency of each. More rows: two panels by eight rows.
  if (x.rows < 4)
    for (; panel + 8 <= panel_end; panel += 8) float_rows<kType, 8>(weights, x, panel, out, out_stride);
  for (; panel + 2 <= panel_end; panel += 2) float_rows<kType, 2>(weights, x, panel, out, out_stride);
  for (; panel < panel_end; ++panel) float_rows<kType, 1>(weights, x, panel, out, out_stride);
}

// kRows rows of one group against one panel. Integer dot products are exact, so only the order of the blocks matters:
// one fused multiply-add per block, in order.
template <int kRows>
void q8_tile(const PackedMatrix& weights, int panel, const std::int8_t* q, const float* scale, const std::int32_t* sum,
             float* out, std::size_t out_stride) {
  const int blocks = weights.inputs / kQ8Block;
  const std::byte* w =
      weights.data + static_cast<std::size_t>(panel) * static_cast<std::size_t>(blocks) * kQ8PanelBlockBytes;
  __m512 total[kRows];
  for (int r = 0; r < kRows; ++r) total[r] = _mm512_setzero_ps();
  for (int b = 0; b < blocks; ++b) {
    __m512i v[8];
    for (int j = 0; j < 8; ++j) v[j] = _mm512_loadu_si512(w + j * 64);
    const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 512)));
    for (int r = 0; r < kRows; ++r) {
      const std::int8_t* a = q + r * kQ8Block;
      __m512i even = _mm512_set1_epi32(sum[r]);
      __m512i odd = _mm512_setzero_si512();
      for (int j = 0; j < 8; j += 2) {
        int four[2];
        __builtin_memcpy(four, a + j * 4, 8);
        even = _mm512_dpbusd_epi32(even, v[j], _mm512_set1_epi32(four[0]));
        odd = _mm512_dpbusd_epi32(odd, v[j + 1], _mm512_set1_epi32(four[1]));
      }
      const __m512 dot = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
      total[r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(d, _mm512_set1_ps(scale[r])), total[r]);
    }
    w += kQ8PanelBlockBytes;
    q += kRowGroup * kQ8Block;
    scale += kRowGroup;
    sum += kRowGroup;
  }
  const __mmask16 mask = panel_mask(weights.outputs, panel);
  for (int r = 0; r < kRows; ++r)
    _mm512_mask_storeu_ps(out + static_cast<std::size_t>(r) * out_stride + panel * kPanel, mask, total[r]);
}

void q8_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
               std::size_t out_stride) {
  const auto blocks = static_cast<std::size_t>(weights.inputs / kQ8Block);
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    for (int group = 0; group < x.rows; group += kRowGroup) {
      const int rows = x.rows - group < kRowGroup ? x.rows - group : kRowGroup;
      for (int r = 0; r < rows;) {
        const std::size_t at = static_cast<std::size_t>(group) * blocks + static_cast<std::size_t>(r);
        const std::int8_t* q = x.q8 + at * kQ8Block;
        const float* scale = x.q8_scale + at;
        const std::int32_t* sum = x.q8_sum + at;
        float* to = out + static_cast<std::size_t>(group + r) * out_stride;
        const int left = rows - r;
        if (left >= 16) {
          q8_tile<16>(weights, panel, q, scale, sum, to, out_stride);
          r += 16;
        } else if (left >= 8) {
          q8_tile<8>(weights, panel, q, scale, sum, to, out_stride);
          r += 8;
        } else if (left >= 4) {
          q8_tile<4>(weights, panel, q, scale, sum, to, out_stride);
          r += 4;
        } else if (left >= 2) {
          q8_tile<2>(weights, panel, q, scale, sum, to, out_stride);
          r += 2;
        } else {
          q8_tile<1>(weights, panel, q, scale, sum, to, out_stride);
          r += 1;
        }
      }
    }
  }
}

}  // namespace

void matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
            std::size_t out_stride) {
  switch (weights.type) {
    case DType::kF32: return float_matmul<DType::kF32>(weights, x, panel_begin, panel_end, out, out_stride);
    case DType::kF16: return float_matmul<DType::kF16>(weights, x, panel_begin, panel_end, out, out_stride);
    case DType::kBF16: return float_matmul<DType::kBF16>(weights, x, panel_begin, panel_end, out, out_stride);
    case DType::kQ8_0: return q8_matmul(weights, x, panel_begin, panel_end, out, out_stride);
  }
}

}  // namespace kvasir::avx512
