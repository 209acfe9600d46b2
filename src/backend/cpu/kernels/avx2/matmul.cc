#include <algorithm>

#include "backend/cpu/kernels/avx2/simd.h"

namespace kvasir::avx2 {
namespace {

template <DType kType>
[[gnu::always_inline]] inline __m256 load_weights(const std::byte* p) {
  if constexpr (kType == DType::kF32) return load8<KvType::kF32>(p);
  if constexpr (kType == DType::kF16) return load8<KvType::kF16>(p);
  return load8<KvType::kBF16>(p);
}

// Some inputs of some rows and panels, and the sums so far.
struct FloatTile {
  const std::byte* weights = nullptr;  // of the first input and panel
  std::size_t panel_bytes = 0;
  const float* x = nullptr;  // of the first input and row
  std::size_t x_stride = 0;
  int inputs = 0;
  float* sums = nullptr;  // [rows][panels][16], 32-byte aligned
};

constexpr int kTileRows = 6;                      // with one panel: as many as leave registers for all sums
constexpr int kGroupRows = 24;                    // whose sums are kept at once
constexpr std::size_t kChunkBytes = 16 * 1024;    // of weights that several tiles of rows read in turns
constexpr std::size_t kPrefetchBytes = 8 * 1024;  // how far ahead weights are fetched

// A tile of kRows rows by kPanels panels; each sum runs over the inputs in order, whatever the tile.
template <DType kType, int kRows, int kPanels>
void multiply_tile(const FloatTile& tile) {
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

template <DType kType, int kPanels, int kMost>
void multiply_rows(const FloatTile& tile, int rows) {
  if constexpr (kMost > 1)
    if (rows < kMost) return multiply_rows<kType, kPanels, kMost - 1>(tile, rows);
  multiply_tile<kType, kMost, kPanels>(tile);
}

// All rows against kPanels panels. Tiles of a group of rows take turns on chunks of the weights that stay in the
// nearest cache, so that memory is read once for all.
template <DType kType, int kPanels, int kMost>
void float_panels(const PackedMatrix& weights, const Activations& x, int panel, float* out, std::size_t out_stride) {
  constexpr std::size_t kStep = kPanel * (kType == DType::kF32 ? 4 : 2);
  constexpr int kChunk = static_cast<int>(kChunkBytes / kStep) / kPanels;
  const auto stride = static_cast<std::size_t>(x.inputs);
  const std::size_t panel_bytes = static_cast<std::size_t>(weights.inputs) * kStep;
  const std::byte* w = weights.data + static_cast<std::size_t>(panel) * panel_bytes;
  for (int row = 0; row < x.rows; row += kGroupRows) {
    const int rows = std::min(x.rows - row, kGroupRows);
    const int tiles = (rows + kMost - 1) / kMost;
    const int chunk = tiles == 1 ? weights.inputs : kChunk;
    alignas(32) float sums[kGroupRows * kPanels * kPanel] = {};
    for (int begin = 0; begin < weights.inputs; begin += chunk) {
      const int inputs = std::min(chunk, weights.inputs - begin);
      int first = 0;
      for (int t = 0; t < tiles; ++t) {
        const int count = (rows - first) / (tiles - t);
        const float* from = x.f32 + static_cast<std::size_t>(row + first) * stride + begin;
        multiply_rows<kType, kPanels, kMost>({w + static_cast<std::size_t>(begin) * kStep, panel_bytes, from, stride,
                                              inputs, sums + first * kPanels * kPanel},
                                             count);
        first += count;
      }
    }
    for (int r = 0; r < rows; ++r)
      for (int p = 0; p < kPanels; ++p) {
        const auto outputs = static_cast<std::size_t>(std::min(kPanel, weights.outputs - (panel + p) * kPanel));
        __builtin_memcpy(out + static_cast<std::size_t>(row + r) * out_stride + (panel + p) * kPanel,
                         sums + (r * kPanels + p) * kPanel, outputs * sizeof(float));
      }
  }
}

template <DType kType>
void float_matmul(const PackedMatrix& weights, const Activations& x, int panel, int panel_end, float* out,
                  std::size_t out_stride) {
  // One row: four panels at once, so that eight sums hide the latency of each.
  if (x.rows == 1)
    for (; panel + 4 <= panel_end; panel += 4) float_panels<kType, 4, 1>(weights, x, panel, out, out_stride);
  if (x.rows <= 3)
    for (; panel + 2 <= panel_end; panel += 2) float_panels<kType, 2, 3>(weights, x, panel, out, out_stride);
  for (; panel < panel_end; ++panel) float_panels<kType, 1, kTileRows>(weights, x, panel, out, out_stride);
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
