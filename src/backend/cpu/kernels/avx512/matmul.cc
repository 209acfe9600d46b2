#include "backend/cpu/kernels/avx512/simd.h"
#include "backend/cpu/kernels/float_panels.h"

namespace kvasir::avx512 {
namespace {

template <DType kType>
[[gnu::always_inline]] inline __m512 load_weights(const std::byte* p) {
  if constexpr (kType == DType::kF32) return load16<KvType::kF32>(p);
  if constexpr (kType == DType::kF16) return load16<KvType::kF16>(p);
  return load16<KvType::kBF16>(p);
}

constexpr int kTileRows = 6;                      // with four panels: as many as leave registers for all sums
constexpr std::size_t kPrefetchBytes = 8 * 1024;  // how far ahead weights are fetched

struct Tiles {
  static constexpr int kGroupRows = 16;

  // A tile of kRows rows by kPanels panels.
  template <DType kType, int kRows, int kPanels>
  static void multiply(const FloatTile& tile) {
    constexpr std::size_t kStep = kPanelInputBytes<kType>;
    __m512 sum[kRows][kPanels];
    for (int r = 0; r < kRows; ++r)
      for (int p = 0; p < kPanels; ++p) sum[r][p] = _mm512_load_ps(tile.sums + (r * kPanels + p) * kPanel);
    const std::byte* w = tile.weights;
    for (int i = 0; i < tile.inputs; ++i, w += kStep) {
      __m512 v[kPanels];
      for (int p = 0; p < kPanels; ++p) {
        const std::byte* place = w + static_cast<std::size_t>(p) * tile.panel_bytes;
        if constexpr (kRows > 1) _mm_prefetch(reinterpret_cast<const char*>(place + kPrefetchBytes), _MM_HINT_T1);
        v[p] = load_weights<kType>(place);
      }
      for (int r = 0; r < kRows; ++r) {
        const __m512 a =
            _mm512_set1_ps(tile.x[static_cast<std::size_t>(r) * tile.x_stride + static_cast<std::size_t>(i)]);
        for (int p = 0; p < kPanels; ++p) sum[r][p] = _mm512_fmadd_ps(v[p], a, sum[r][p]);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int p = 0; p < kPanels; ++p) _mm512_store_ps(tile.sums + (r * kPanels + p) * kPanel, sum[r][p]);
  }
};

template <DType kType>
void float_matmul(const PackedMatrix& weights, const Activations& x, int panel, int panel_end, float* out,
                  std::size_t out_stride) {
  // One or two rows: eight panels at once, so that eight sums hide the latency of each.
  if (x.rows <= 2)
    for (; panel + 8 <= panel_end; panel += 8) float_panels<Tiles, kType, 8, 2>(weights, x, panel, out, out_stride);
  for (; panel + 4 <= panel_end; panel += 4)
    float_panels<Tiles, kType, 4, kTileRows>(weights, x, panel, out, out_stride);
  for (; panel < panel_end; ++panel) float_panels<Tiles, kType, 1, kTileRows>(weights, x, panel, out, out_stride);
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
