// The tile unit. Internal to the translation unit that includes it, as it is compiled for AMX.
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels/amx/amx_table.h"

namespace kvasir::amx {
namespace {

constexpr int kTileRowBytes = 64;

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// Keeps stores before later tile loads: GCC's intrinsics do not say what memory they read.
[[gnu::always_inline]] inline void compiler_fence() {
  asm volatile("" ::: "memory");
}

// Returns which of a panel's 16 outputs the matrix has.
[[gnu::always_inline]] inline __mmask16 outputs_of(const PackedMatrix& weights, int panel) {
  const int left = weights.outputs - panel * kPanel;
  return static_cast<__mmask16>(left < kPanel ? (1u << left) - 1 : 0xffffu);
}

// Holds the tile unit set up for products of `rows` rows of `row_bytes` bytes. Tiles 0 to 3 hold sums, 4 and 5 rows, 6
// and 7 weights: two of each kind of operand and four sums hide latencies. A row of weights has four of these bytes of
// each of 16 outputs.
class Tiles {
 public:
  explicit Tiles(int row_bytes, int rows = kRowGroup) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = static_cast<std::uint16_t>(tile == 4 || tile == 5 ? row_bytes : kTileRowBytes);
      config.rows[tile] = static_cast<std::uint8_t>(tile >= 6 ? row_bytes / 4 : rows);
    }
    compiler_fence();
    _tile_loadconfig(&config);
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  ~Tiles() { _tile_release(); }
};

}  // namespace
}  // namespace kvasir::amx
