// Products with weights of 16 or 32 bits, written once over tiles of rows by panels. Internal to the translation unit
// that includes it: each table instantiates it with its own vectors (avx512/simd.h), so that no code compiled for one
// is shared with code that runs without it. Each sum runs over the inputs in order, whatever the tile.
#pragma once

#include <algorithm>

#include "backend/cpu/kernels/kernels.h"

namespace kvasir {
namespace {

// Some inputs of some rows and panels, and the sums so far.
struct FloatTile {
  const std::byte* weights = nullptr;  // of the first input and panel
  std::size_t panel_bytes = 0;
  const float* x = nullptr;  // of the first input and row
  std::size_t x_stride = 0;
  int inputs = 0;
  float* sums = nullptr;  // [rows][panels][16], 64-byte aligned
};

constexpr std::size_t kBlockBytes = 16 * 1024;  // of weights that several tiles of rows read in turns

template <DType kType>
constexpr std::size_t kPanelInputBytes = kPanel*(kType == DType::kF32 ? 4 : 2);

template <class Tiles, DType kType, int kPanels, int kMost>
void multiply_rows(const FloatTile& tile, int rows) {
  if constexpr (kMost > 1)
    if (rows < kMost) return multiply_rows<Tiles, kType, kPanels, kMost - 1>(tile, rows);
  Tiles::template multiply<kType, kMost, kPanels>(tile);
}

// All rows against kPanels panels, in tiles of at most kMost rows. Tiles of a group of rows (Tiles::kGroupRows, whose
// sums are kept at once) take turns on blocks of the weights that stay in the nearest cache, so that memory is read
// once for all.
template <class Tiles, DType kType, int kPanels, int kMost>
void float_panels(const PackedMatrix& weights, const Activations& x, int panel, float* out, std::size_t out_stride) {
  constexpr std::size_t kStep = kPanelInputBytes<kType>;
  constexpr int kBlock = static_cast<int>(kBlockBytes / kStep) / kPanels;
  const auto stride = static_cast<std::size_t>(x.inputs);
  const std::size_t panel_bytes = static_cast<std::size_t>(weights.inputs) * kStep;
  const std::byte* w = weights.data + static_cast<std::size_t>(panel) * panel_bytes;
  for (int row = 0; row < x.rows; row += Tiles::kGroupRows) {
    const int rows = std::min(x.rows - row, Tiles::kGroupRows);
    const int tiles = (rows + kMost - 1) / kMost;
    const int block = tiles == 1 ? weights.inputs : kBlock;
    alignas(64) float sums[Tiles::kGroupRows * kPanels * kPanel] = {};
    for (int begin = 0; begin < weights.inputs; begin += block) {
      const int inputs = std::min(block, weights.inputs - begin);
      int first = 0;
      for (int t = 0; t < tiles; ++t) {
        const int count = (rows - first) / (tiles - t);
        const float* from = x.f32 + static_cast<std::size_t>(row + first) * stride + begin;
        multiply_rows<Tiles, kType, kPanels, kMost>({w + static_cast<std::size_t>(begin) * kStep, panel_bytes, from,
                                                     stride, inputs, sums + first * kPanels * kPanel},
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

}  // namespace
}  // namespace kvasir
