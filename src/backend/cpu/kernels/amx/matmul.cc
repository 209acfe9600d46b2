// Products of quantised weights with up to 16 rows at a time on the tile unit. A tile of 32 inputs gives the integer
// sums of 16 rows times 16 outputs; what is done with them is what quantized.h does, in the same order: the same bits.
#include <algorithm>
#include <cstddef>

#include "backend/cpu/kernels/amx/group_product.h"
#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/amx/weight_parts.h"

namespace kvasir::amx {
namespace {

// The totals of products with one panel in the output, for the first `rows` rows of a group. `starts`: they begin at
// zero.
struct Output {
  float* at = nullptr;
  std::size_t stride = 0;
  int rows = 0;
  __mmask16 outputs = 0;
  bool starts = false;

  template <int kRows>
  [[gnu::always_inline]] void load(Floats* totals) const {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
      totals[r] = reinterpret_cast<Floats>(_mm512_maskz_loadu_ps(!starts && r < rows ? outputs : __mmask16{0},
                                                                 at + static_cast<std::size_t>(r) * stride));
  }
  template <int kRows>
  [[gnu::always_inline]] void store(const Floats* totals) const {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
      _mm512_mask_storeu_ps(at + static_cast<std::size_t>(r) * stride, r < rows ? outputs : __mmask16{0},
                            reinterpret_cast<__m512>(totals[r]));
  }
};

// Adds products of a group's rows to what `out` has of them, or starts there.
template <int kRows, bool kFetches, class Parts>
[[gnu::always_inline]] inline void multiply_panel(const Parts& weights, const Q8Rows& x, int parts, const Output& out) {
  Floats totals[kRows];
  out.load<kRows>(totals);
  GroupProduct<Parts, kRows, OnePanel<Parts, kFetches>>({weights, parts}, x).add(totals);
  out.store<kRows>(totals);
}

// Adds products of a group's rows and several panels, in runs.
template <int kRows, bool kFetches, class Parts, class OutputOf>
void multiply_runs(const Parts* panels, int count, const Q8Rows& x, int parts, const std::byte* after,
                   const OutputOf& output) {
  Floats totals[kBlockPanels][kRows];
  for (int p = 0; p < count; ++p) output(p).template load<kRows>(totals[p]);
  Floats of_run[kRows]{};
  GroupProduct<Parts, kRows, Runs<Parts, kRows, kFetches>> product({panels, count, parts, after, totals}, x);
  product.add(of_run);
  product.order().finish(of_run);
  for (int p = 0; p < count; ++p) output(p).template store<kRows>(totals[p]);
}

// Panels and parts whose products are made of the same opened weights.
struct Strip {
  int panel = 0;
  int panels = 0;
  int part = 0;
  int parts = 0;
};

// Multiplies all rows by a strip, kRows of each group. Totals are kept in `out` between strips.
template <class B, int kRows, class Parts>
void multiply_strip(const PackedMatrix& weights, const Activations& x, const Strip& strip, Parts* panels, float* out,
                    std::size_t out_stride) {
  const int all_parts = weights.inputs / kQ8Block;
  const int blocks = all_parts / B::kParts;
  const std::size_t panel_bytes = static_cast<std::size_t>(blocks) * B::kLayout.panel_block_bytes();
  const std::byte* data = weights.data + static_cast<std::size_t>(strip.panel) * panel_bytes;
  for (int p = 0; p < strip.panels; ++p)
    panels[p].open(data + static_cast<std::size_t>(p) * panel_bytes, blocks, strip.part, strip.parts);
  compiler_fence();
  for (int row = 0; row < x.rows; row += kRowGroup) {
    const Q8Rows group = x.q8.at(static_cast<std::size_t>(row) * static_cast<std::size_t>(all_parts) +
                                 static_cast<std::size_t>(strip.part) * kRowGroup);
    const auto output = [&](int p) {
      return Output{out + static_cast<std::size_t>(row) * out_stride + (strip.panel + p) * kPanel, out_stride,
                    std::min(kRowGroup, x.rows - row), outputs_of(weights, strip.panel + p), strip.part == 0};
    };
    constexpr bool kFetches = Parts::kFetchedBytes > 0;
    if constexpr (kFetches) {
      if (takes_runs(kRows, x.rows, strip.parts)) {
        const std::byte* after = data + static_cast<std::size_t>(strip.panels) * panel_bytes;
        if (row == 0)
          multiply_runs<kRows, true>(panels, strip.panels, group, strip.parts, after, output);
        else
          multiply_runs<kRows, false>(panels, strip.panels, group, strip.parts, after, output);
        continue;
      }
    }
    for (int p = 0; p < strip.panels; ++p) {
      if (kFetches && row == 0)
        multiply_panel<kRows, kFetches>(panels[p], group, strip.parts, output(p));
      else
        multiply_panel<kRows, false>(panels[p], group, strip.parts, output(p));
    }
  }
}

// Multiplies by weights where they lie. REQUIRES: at most kRows rows, or kRows == kRowGroup; an even number of parts.
template <class B, int kRows>
void multiply_stored(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                     std::size_t out_stride) {
  const Tiles tiles(kQ8Block, kRows);
  StoredParts<B> parts[kBlockPanels];
  for (int panel = panel_begin; panel < panel_end; panel += kBlockPanels)
    multiply_strip<B, kRows>(weights, x,
                             {panel, std::min(kBlockPanels, panel_end - panel), 0, weights.inputs / kQ8Block}, parts,
                             out, out_stride);
}

template <class B>
void multiply_opened(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                     std::size_t out_stride) {
  static_assert(kBlockParts % B::kParts == 0 && kFewParts % B::kParts == 0);
  const Tiles tiles(kQ8Block / OpenParts<B>::kSums);
  const int all_parts = weights.inputs / kQ8Block;
  OpenParts<B> parts[kBlockPanels];
  const auto multiply_next = [&](int panel, int panels, int part, int count) {
    multiply_strip<B, kRowGroup>(weights, x,
                                 {panel, std::min(panels, panel_end - panel), part, std::min(count, all_parts - part)},
                                 parts, out, out_stride);
  };
  if (x.rows <= kFewRows) {
    for (int panel = panel_begin; panel < panel_end; ++panel)
      for (int part = 0; part < all_parts; part += kFewParts) multiply_next(panel, 1, part, kFewParts);
    return;
  }
  // The same parts of the rows for all panels, before the next.
  for (int part = 0; part < all_parts; part += kBlockParts)
    for (int panel = panel_begin; panel < panel_end; panel += kBlockPanels)
      multiply_next(panel, kBlockPanels, part, kBlockParts);
}

// With fewer rows, vectors are faster. Up to kMostStoredRows, weights of Q8_0 with an even number of blocks are
// multiplied where they lie; for more rows, opening them once is faster than converting their scales for each group.
constexpr int kLeastStoredRows = 3;
constexpr int kMostStoredRows = 64;
template <class B>
constexpr int kLeastOpenedRows = OpenParts<B>::kHalves ? 17 : 14;

template <DType kType>
void multiply(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
              std::size_t out_stride) {
  using B = Block<Avx512, kType>;
  if constexpr (kType == DType::kQ8_0) {
    if (x.rows >= kLeastStoredRows && x.rows <= kMostStoredRows && weights.inputs % (2 * kQ8Block) == 0) {
      const auto stored = [&]<int kRows>() {
        multiply_stored<B, kRows>(weights, x, panel_begin, panel_end, out, out_stride);
      };
      if (x.rows <= 4) return stored.template operator()<4>();
      if (x.rows <= 8) return stored.template operator()<8>();
      if (x.rows <= 12) return stored.template operator()<12>();
      return stored.template operator()<kRowGroup>();
    }
  }
  if (x.rows < kLeastOpenedRows<B>)
    return avx512_kernels()->matmul(weights, x, panel_begin, panel_end, out, out_stride);
  multiply_opened<B>(weights, x, panel_begin, panel_end, out, out_stride);
}

}  // namespace

void matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
            std::size_t out_stride) {
  if (weights.type == DType::kBF16) return bf16_matmul(weights, x, panel_begin, panel_end, out, out_stride);
  if (!is_quantized(weights.type)) return avx512_kernels()->matmul(weights, x, panel_begin, panel_end, out, out_stride);
  with_quantized_type(weights.type,
                      [&]<DType kType>() { multiply<kType>(weights, x, panel_begin, panel_end, out, out_stride); });
}

}  // namespace kvasir::amx
