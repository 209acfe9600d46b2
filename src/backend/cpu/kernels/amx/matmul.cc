// Products of quantised weights with 16 rows at a time on the tile unit. A tile of 32 inputs gives the integer sums of
// 16 rows times 16 outputs; what is done with them is what quantized.h does, in the same order: the same bits.
#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/avx512/quantized_instructions.h"

namespace kvasir::amx {
namespace {

constexpr int kGroupBytes = kRowGroup * kQ8Block;  // a block of 16 rows
constexpr int kLeastRows = 12;                     // with fewer, vectors are faster

// How much is opened at once. Many rows wait for the tile unit: long sums of four panels, and the rows of as many
// parts, stay in the second cache. Few rows wait for memory: so little that the weights fetched ahead meanwhile are
// those of the next chunk.
constexpr int kChunkParts = 64;
constexpr int kChunkPanels = 4;
constexpr int kFewRows = 2 * kRowGroup;
constexpr int kFewParts = 8;

// Sums of `rows` (a stride of 32 bytes) times `weights`. The compiler's intrinsics take literals alone.
template <int kSum>
[[gnu::always_inline]] inline void multiply_tile(const std::int8_t* rows, const std::int8_t* weights) {
  if constexpr (kSum == 0) {
    _tile_loadd(4, rows, kQ8Block);
    _tile_loadd(6, weights, kTileRowBytes);
    _tile_zero(0);
    _tile_dpbssd(0, 4, 6);
  } else if constexpr (kSum == 1) {
    _tile_loadd(5, rows, kQ8Block);
    _tile_loadd(7, weights, kTileRowBytes);
    _tile_zero(1);
    _tile_dpbssd(1, 5, 7);
  } else if constexpr (kSum == 2) {
    _tile_loadd(4, rows, kQ8Block);
    _tile_loadd(6, weights, kTileRowBytes);
    _tile_zero(2);
    _tile_dpbssd(2, 4, 6);
  } else {
    _tile_loadd(5, rows, kQ8Block);
    _tile_loadd(7, weights, kTileRowBytes);
    _tile_zero(3);
    _tile_dpbssd(3, 5, 7);
  }
}

template <int kSum>
[[gnu::always_inline]] inline void store_tile(std::int32_t* sums) {
  if constexpr (kSum == 0) _tile_stored(0, sums, kTileRowBytes);
  if constexpr (kSum == 1) _tile_stored(1, sums, kTileRowBytes);
  if constexpr (kSum == 2) _tile_stored(2, sums, kTileRowBytes);
  if constexpr (kSum == 3) _tile_stored(3, sums, kTileRowBytes);
}

// Parts of a panel, opened: what quantized.h calls u, less its offset, and what is done with its sums.
template <class B>
struct OpenParts {
  static constexpr bool kHalves = B::kTerms == Terms::kHalfOffset || B::kTerms == Terms::kHalfMinimum;
  static constexpr bool kMinima = B::kTerms == Terms::kMinimum || B::kTerms == Terms::kHalfMinimum;
  static constexpr int kSums = kHalves ? 2 : 1;  // of a part

  alignas(64) std::int8_t weights[kChunkParts][8 * kTileRowBytes];
  Floats scale[kChunkParts][kSums];
  Floats minus_minimum[kMinima ? kChunkParts : 1][kSums];

  // `parts` (whole blocks) from `p` on.
  void open(const std::byte* p, int parts) {
    Words offset{};
    if constexpr (!kMinima) offset += static_cast<std::uint32_t>(B::kOffset) * 0x01010101u;
    constexpr std::size_t kBlockBytes = B::kLayout.panel_block_bytes();
    constexpr int kPartBytes = static_cast<int>(kBlockBytes) / B::kParts;
    for (int first = 0; first < parts; first += B::kParts, p += kBlockBytes) {
      const B block(p, 0);
#pragma GCC unroll 8
      for (int part = 0; part < B::kParts; ++part) {
        prefetch_ahead<kPartBytes>(p + part * kPartBytes);
        Words w[8];
        block.weights(part, w);
        std::int8_t* to = weights[first + part];
        for (int g = 0; g < 8; ++g)
          _mm512_store_si512(to + g * kTileRowBytes,
                             _mm512_sub_epi8(reinterpret_cast<__m512i>(w[g]), reinterpret_cast<__m512i>(offset)));
        for (int half = 0; half < kSums; ++half) {
          scale[first + part][half] = block.scale(part, half);
          if constexpr (kMinima) minus_minimum[first + part][half] = block.minus_minimum(part, half);
        }
      }
    }
  }
};

// Parts of one panel times one group of rows.
template <class B>
class GroupProduct {
 public:
  using Open = OpenParts<B>;
  static constexpr int kSums = Open::kSums;

  GroupProduct(const Open& open, const Q8Rows& x, int parts) : open_(open), x_(x), sums_(parts * kSums) {}

  // Adds to the totals of 16 rows.
  [[gnu::always_inline]] void add(Floats* totals) {
    for (int first = 0; first < sums_ + kDelay; first += 4) {
      step<0>(first, totals);
      step<1>(first + 1, totals);
      step<2>(first + 2, totals);
      step<3>(first + 3, totals);
    }
  }

 private:
  // Tiles are stored three products behind, and their sums used two stores behind, so that nothing waits.
  static constexpr int kStoreDelay = 3;
  static constexpr int kDelay = kStoreDelay + 2;
  static constexpr int kRing = 8;
  static constexpr int kMagic = 0x4b400000;
  static constexpr bool kConverts = !Open::kHalves;  // halves have more products than sums already
  static_assert(kQ8Block * 127 * 128 < 1 << 22);

  template <int kSum>
  [[gnu::always_inline]] void step(int sum, Floats* totals) {
    const int stored = sum - kStoreDelay;
    if (stored >= 0 && stored < sums_) store_tile<(kSum - kStoreDelay) & 3>(ring_[stored % kRing]);
    if (sum < sums_)
      multiply_tile<kSum>(x_.quants + sum / kSums * kGroupBytes + sum % kSums * 16,
                          open_.weights[sum / kSums] + sum % kSums * 4 * kTileRowBytes);
    const int done = sum - kDelay;
    if (done < 0 || done >= sums_ || done % kSums != kSums - 1) return;
    add_part(done / kSums, totals);
  }

  // While the tile unit is in use, conversions and products share one port; sums and the stores of tiles share another.
  // So some integers become floats by conversion and some by two sums, so that both ports have as much to do: kMagic +
  // i, read as a float, is 1.5 * 2^23 + i, exactly where |i| < 2^22.
  [[gnu::always_inline]] Floats sum_of(int sum, int row) const {
    const __m512i magic = _mm512_set1_epi32(kMagic);
    const __m512i integers = _mm512_load_si512(ring_[sum % kRing] + row * kPanel);
    if (kConverts && row % 3 == 0) return reinterpret_cast<Floats>(_mm512_cvtepi32_ps(integers));
    return reinterpret_cast<Floats>(
        _mm512_sub_ps(_mm512_castsi512_ps(_mm512_add_epi32(integers, magic)), _mm512_castsi512_ps(magic)));
  }

  [[gnu::always_inline]] void add_part(int part, Floats* totals) const {
    const Floats* scale = open_.scale[part];
    const Q8Rows x = x_.at(static_cast<std::size_t>(part) * kRowGroup);
#pragma GCC unroll 16
    for (int r = 0; r < kRowGroup; ++r) {
      const Floats row_scale = broadcast(x.scale[r]);
      if constexpr (!Open::kHalves) {
        totals[r] = Avx512::fma(sum_of(part, r), scale[0] * row_scale, totals[r]);
        if constexpr (Open::kMinima)
          totals[r] = Avx512::fma(open_.minus_minimum[part][0], broadcast(x.scaled_sum[r]), totals[r]);
      } else {
        Floats sum = sum_of(2 * part, r) * scale[0];
        sum = Avx512::fma(sum_of(2 * part + 1, r), scale[1], sum);
        if constexpr (Open::kMinima)
          for (int half = 0; half < 2; ++half)
            sum = Avx512::fma(open_.minus_minimum[part][half],
                              broadcast(static_cast<float>(x.half_sum[2 * r + half]) * (-1.0F / 128)), sum);
        totals[r] = Avx512::fma(sum, row_scale, totals[r]);
      }
    }
  }

  const Open& open_;
  Q8Rows x_;
  int sums_;
  alignas(64) std::int32_t ring_[kRing][kRowGroup * kPanel];
};

// Panels and parts whose products are made of the same opened weights.
struct Chunk {
  int panel = 0;
  int panels = 0;
  int part = 0;
  int parts = 0;
};

// Multiplies all rows by a chunk. Totals are kept in `out` between chunks.
template <class B>
void multiply_chunk(const PackedMatrix& weights, const Activations& x, const Chunk& chunk, OpenParts<B>* open,
                    float* out, std::size_t out_stride) {
  constexpr std::size_t kBlockBytes = B::kLayout.panel_block_bytes();
  const int all_parts = weights.inputs / kQ8Block;
  const std::size_t panel_bytes = static_cast<std::size_t>(all_parts / B::kParts) * kBlockBytes;
  for (int p = 0; p < chunk.panels; ++p)
    open[p].open(weights.data + static_cast<std::size_t>(chunk.panel + p) * panel_bytes +
                     static_cast<std::size_t>(chunk.part / B::kParts) * kBlockBytes,
                 chunk.parts);
  compiler_fence();
  for (int row = 0; row < x.rows; row += kRowGroup) {
    const int rows = x.rows - row < kRowGroup ? x.rows - row : kRowGroup;
    const Q8Rows group = x.q8.at(static_cast<std::size_t>(row) * static_cast<std::size_t>(all_parts) +
                                 static_cast<std::size_t>(chunk.part) * kRowGroup);
    for (int p = 0; p < chunk.panels; ++p) {
      const __mmask16 mask = outputs_of(weights, chunk.panel + p);
      float* to = out + static_cast<std::size_t>(row) * out_stride + (chunk.panel + p) * kPanel;
      Floats totals[kRowGroup];
#pragma GCC unroll 16
      for (int r = 0; r < kRowGroup; ++r)
        totals[r] = reinterpret_cast<Floats>(_mm512_maskz_loadu_ps(chunk.part > 0 && r < rows ? mask : __mmask16{0},
                                                                   to + static_cast<std::size_t>(r) * out_stride));
      GroupProduct<B>(open[p], group, chunk.parts).add(totals);
#pragma GCC unroll 16
      for (int r = 0; r < kRowGroup; ++r)
        _mm512_mask_storeu_ps(to + static_cast<std::size_t>(r) * out_stride, r < rows ? mask : __mmask16{0},
                              reinterpret_cast<__m512>(totals[r]));
    }
  }
}

template <DType kType>
void multiply(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
              std::size_t out_stride) {
  using B = Block<Avx512, kType>;
  static_assert(kChunkParts % B::kParts == 0 && kFewParts % B::kParts == 0);
  const Tiles tiles(kQ8Block / OpenParts<B>::kSums);
  const int all_parts = weights.inputs / kQ8Block;
  OpenParts<B> open[kChunkPanels];
  const auto multiply_next = [&](int panel, int panels, int part, int parts) {
    if (panels > panel_end - panel) panels = panel_end - panel;
    if (parts > all_parts - part) parts = all_parts - part;
    multiply_chunk<B>(weights, x, {panel, panels, part, parts}, open, out, out_stride);
  };
  if (x.rows <= kFewRows) {
    for (int panel = panel_begin; panel < panel_end; ++panel)
      for (int part = 0; part < all_parts; part += kFewParts) multiply_next(panel, 1, part, kFewParts);
    return;
  }
  // The same parts of the rows for all panels, before the next.
  for (int part = 0; part < all_parts; part += kChunkParts)
    for (int panel = panel_begin; panel < panel_end; panel += kChunkPanels)
      multiply_next(panel, kChunkPanels, part, kChunkParts);
}

}  // namespace

void matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
            std::size_t out_stride) {
  if (weights.type == DType::kBF16) return bf16_matmul(weights, x, panel_begin, panel_end, out, out_stride);
  if (x.rows < kLeastRows || !is_quantized(weights.type))
    return avx512::matmul(weights, x, panel_begin, panel_end, out, out_stride);
  with_quantized_type(weights.type,
                      [&]<DType kType>() { multiply<kType>(weights, x, panel_begin, panel_end, out, out_stride); });
}

}  // namespace kvasir::amx
