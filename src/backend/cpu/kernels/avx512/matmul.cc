#include "backend/cpu/kernels/avx512/simd.h"
#include "backend/cpu/kernels/float_matmul.h"

namespace kvasir::avx512 {
namespace {

struct Products {
  static constexpr auto of_quantized = quantized_matmul;

  template <DType kType>
  static void of_floats(const PackedMatrix& weights, const Activations& x, int panel, int panel_end, float* out,
                        std::size_t out_stride) {
    using Tiles = FloatTiles<Vectors, 16>;
    constexpr int kRows = 6;  // with four panels: as many as leave registers for all sums
    // One or two rows: eight panels at once, so that eight sums hide the latency of each.
    if (x.rows <= 2)
      for (; panel + 8 <= panel_end; panel += 8) float_panels<Tiles, kType, 8, 2>(weights, x, panel, out, out_stride);
    for (; panel + 4 <= panel_end; panel += 4) float_panels<Tiles, kType, 4, kRows>(weights, x, panel, out, out_stride);
    for (; panel < panel_end; ++panel) float_panels<Tiles, kType, 1, kRows>(weights, x, panel, out, out_stride);
  }
};

}  // namespace

void set_matmul(KernelTable& table) {
  table.matmul = matmul<Products>;
}

}  // namespace kvasir::avx512
