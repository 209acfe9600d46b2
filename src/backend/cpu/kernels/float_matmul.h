// Tiles of float_panels.h over vectors of 16 lanes (avx512/simd.h), and the choice of products by the type of weights.
// Written once; compiled for each instruction set by the file that includes it.
#pragma once

#include <xmmintrin.h>

#include "backend/cpu/kernels/float_panels.h"
#include "backend/cpu/kernels/unrolled.h"

namespace kvasir {
namespace {

template <DType kType>
inline constexpr KvType kElementsOf = kType == DType::kF32   ? KvType::kF32
                                      : kType == DType::kF16 ? KvType::kF16
                                                             : KvType::kBF16;

// kGroup: rows whose sums are kept at once.
template <class Simd, int kGroup>
struct FloatTiles {
  static constexpr int kGroupRows = kGroup;
  static constexpr std::size_t kPrefetchBytes = 8 * 1024;  // how far ahead weights are fetched

  // A tile of kRows rows by kPanels panels.
  template <DType kType, int kRows, int kPanels>
  static void multiply(const FloatTile& tile) {
    using Floats = typename Simd::Floats;
    Floats sum[kRows][kPanels];
    // Constants from the start: GCC then keeps sums of two registers each in registers.
    const auto for_each = [](const auto& run) __attribute__((always_inline)) {
      unrolled<kRows * kPanels>([&](auto number) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(number)::value;
        run(std::integral_constant<int, kNumber / kPanels>{}, std::integral_constant<int, kNumber % kPanels>{});
      });
    };
    for_each([&](auto r, auto p) { sum[r][p] = Simd::load(tile.sums + (r * kPanels + p) * kPanel); });
    const std::byte* w = tile.weights;
    for (int i = 0; i < tile.inputs; ++i, w += kPanelInputBytes<kType>) {
      Floats v[kPanels];
      unrolled<kPanels>([&](auto p) __attribute__((always_inline)) {
        const std::byte* place = w + static_cast<std::size_t>(p) * tile.panel_bytes;
        if constexpr (kRows > 1) _mm_prefetch(reinterpret_cast<const char*>(place + kPrefetchBytes), _MM_HINT_T1);
        v[p] = Simd::template load_elements<kElementsOf<kType>>(place);
      });
      unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
        const Floats a = Simd::all(tile.x[static_cast<std::size_t>(r) * tile.x_stride + static_cast<std::size_t>(i)]);
        unrolled<kPanels>([&](auto p) __attribute__((always_inline)) { sum[r][p] = Simd::fma(v[p], a, sum[r][p]); });
      });
    }
    for_each([&](auto r, auto p) { Simd::store(tile.sums + (r * kPanels + p) * kPanel, sum[r][p]); });
  }
};

// KernelTable::matmul. Products::of_floats<type> are those with weights of 16 or 32 bits.
template <class Products>
void matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
            std::size_t out_stride) {
  const auto of_floats = [&]<DType kType>() {
    Products::template of_floats<kType>(weights, x, panel_begin, panel_end, out, out_stride);
  };
  switch (weights.type) {
    case DType::kF32: return of_floats.template operator()<DType::kF32>();
    case DType::kF16: return of_floats.template operator()<DType::kF16>();
    case DType::kBF16: return of_floats.template operator()<DType::kBF16>();
    default: return Products::of_quantized(weights, x, panel_begin, panel_end, out, out_stride);
  }
}

}  // namespace
}  // namespace kvasir
