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

}  // namespace

void matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
            std::size_t out_stride) {
  switch (weights.type) {
    case DType::kF32: return float_matmul<DType::kF32>(weights, x, panel_begin, panel_end, out, out_stride);
    case DType::kF16: return float_matmul<DType::kF16>(weights, x, panel_begin, panel_end, out, out_stride);
    case DType::kBF16: return float_matmul<DType::kBF16>(weights, x, panel_begin, panel_end, out, out_stride);
    default: return quantized_matmul(weights, x, panel_begin, panel_end, out, out_stride);
  }
}

}  // namespace kvasir::avx512
