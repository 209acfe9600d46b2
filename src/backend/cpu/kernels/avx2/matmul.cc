#include "backend/cpu/kernels/avx2/simd.h"
#include "backend/cpu/kernels/float_matmul.h"

namespace kvasir::avx2 {
namespace {

struct Products {
  static constexpr auto of_quantized = quantized_matmul;

  template <DType kType>
  static void of_floats(const PackedMatrix& weights, const Activations& x, int panel, int panel_end, float* out,
                        std::size_t out_stride) {
    using Tiles = FloatTiles<Vectors, 24>;
    constexpr int kRows = 6;  // with one panel: as many as leave registers for all sums
    // One row: four panels at once, so that eight sums hide the latency of each.
    if (x.rows == 1)
      for (; panel + 4 <= panel_end; panel += 4) float_panels<Tiles, kType, 4, 1>(weights, x, panel, out, out_stride);
    if (x.rows <= 3)
      for (; panel + 2 <= panel_end; panel += 2) float_panels<Tiles, kType, 2, 3>(weights, x, panel, out, out_stride);
    for (; panel < panel_end; ++panel) float_panels<Tiles, kType, 1, kRows>(weights, x, panel, out, out_stride);
  }
};

}  // namespace

void set_matmul(KernelTable& table) {
  table.matmul = matmul<Products>;
}

}  // namespace kvasir::avx2
