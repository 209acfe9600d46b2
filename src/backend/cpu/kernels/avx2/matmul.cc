#include "backend/cpu/kernels/avx2/simd.h"
#include "backend/cpu/kernels/float_panels.h"

namespace kvasir::avx2 {
namespace {

template <DType kType>
[[gnu::always_inline]] inline __m256 load_weights(const std::byte* p) {
  if constexpr (kType == DType::kF32) return load8<KvType::kF32>(p);
  if constexpr (kType == DType::kF16) return load8<KvType::kF16>(p);
  return load8<KvType::kBF16>(p);
}

constexpr int kTileRows = 6;                      // with one panel: as many as leave registers for all sums
constexpr std::size_t kPrefetchBytes = 8 * 1024;  // how far ahead weights are fetched

struct Tiles {
  static constexpr int kGroupRows = 24;

  // A tile of kRows rows by kPanels panels.
  template <DType kType, int kRows, int kPanels>
  static void multiply(const FloatTile& tile) {
    constexpr std::size_t kSize = kType == DType::kF32 ? 4 : 2;
    constexpr int kVectors = 2 * kPanels;
    __m256 sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm256_load_ps(tile.sums + (r * kVectors + v) * 8);
    const std::byte* w = tile.weights;
    for (int i = 0; i < tile.inputs; ++i, w += kPanel * kSize) {
      if constexpr (kRows > 1) _mm_prefetch(reinterpret_cast<const char*>(w + kPrefetchBytes), _MM_HINT_T1);
      __m256 weights[kVectors];
      for (int v = 0; v < kVectors; ++v)
        weights[v] = load_weights<kType>(w + static_cast<std::size_t>(v / 2) * tile.panel_bytes +
                                         static_cast<std::size_t>(v % 2) * 8 * kSize);
      for (int r = 0; r < kRows; ++r) {
        const __m256 a =
            _mm256_broadcast_ss(tile.x + static_cast<std::size_t>(r) * tile.x_stride + static_cast<std::size_t>(i));
        for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm256_fmadd_ps(weights[v], a, sum[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) _mm256_store_ps(tile.sums + (r * kVectors + v) * 8, sum[r][v]);
  }
};

template <DType kType>
void float_matmul(const PackedMatrix& weights, const Activations& x, int panel, int panel_end, float* out,
                  std::size_t out_stride) {
  // One row: four panels at once, so that eight sums hide the latency of each.
  if (x.rows == 1)
    for (; panel + 4 <= panel_end; panel += 4) float_panels<Tiles, kType, 4, 1>(weights, x, panel, out, out_stride);
  if (x.rows <= 3)
    for (; panel + 2 <= panel_end; panel += 2) float_panels<Tiles, kType, 2, 3>(weights, x, panel, out, out_stride);
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

}  // namespace kvasir::avx2
