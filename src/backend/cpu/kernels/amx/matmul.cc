// Products of quantised weights with up to 16 rows at a time on the tile unit. A tile of 32 inputs gives the integer
// sums of 16 rows times 16 outputs; what is done with them is what quantized.h does, in the same order: the same bits.
#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/avx512/quantized_instructions.h"

namespace kvasir::amx {
namespace {

constexpr int kGroupBytes = kRowGroup * kQ8Block;  // a block of 16 rows

// How much is opened at once. Many rows wait for the tile unit: long sums of four panels, and the rows of as many
// parts, stay in the second cache. Few rows wait for memory: so little that the weights fetched ahead meanwhile are
// those of the next chunk. Few rows take Q8_0 as it lies, without opening it.
constexpr int kChunkParts = 64;
constexpr int kChunkPanels = 4;
constexpr int kFewRows = 2 * kRowGroup;
constexpr int kFewParts = 8;

// Sums of `rows` (a stride of 32 bytes) times `weights`. The compiler's intrinsics take literals alone.
template <int kSum>
[[gnu::always_inline]] inline void multiply_tile(const std::int8_t* rows, const void* weights) {
  if constexpr (kSum % 2 == 0) {
    _tile_loadd(4, rows, kQ8Block);
    _tile_loadd(6, weights, kTileRowBytes);
  } else {
    _tile_loadd(5, rows, kQ8Block);
    _tile_loadd(7, weights, kTileRowBytes);
  }
  if constexpr (kSum == 0) {
    _tile_zero(0);
    _tile_dpbssd(0, 4, 6);
  } else if constexpr (kSum == 1) {
    _tile_zero(1);
    _tile_dpbssd(1, 5, 7);
  } else if constexpr (kSum == 2) {
    _tile_zero(2);
    _tile_dpbssd(2, 4, 6);
  } else {
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
  static constexpr bool kFetchesWhileMultiplying = false;

  [[gnu::always_inline]] const void* weights_of(int part, int half) const {
    return weights[part] + half * 4 * kTileRowBytes;
  }
  [[gnu::always_inline]] const Floats* scales_of(int part) const { return scale[part]; }

  alignas(64) std::int8_t weights[kChunkParts][8 * kTileRowBytes];
  Floats scale[kChunkParts][kSums];
  Floats minus_minimum[kMinima ? kChunkParts : 1][kSums];

  // `parts` parts (whole blocks) from `first` on, of the `blocks` blocks of `panel`.
  void open(const std::byte* panel, int blocks, int first, int parts) {
    Words offset{};
    if constexpr (!kMinima) offset += static_cast<std::uint32_t>(B::kOffset) * 0x01010101u;
    constexpr std::size_t kBlockBytes = B::kLayout.panel_block_bytes();
    constexpr int kPartBytes = static_cast<int>(kBlockBytes) / B::kParts;
    constexpr int kPartLines = (kPartBytes + 63) / 64;
    const int first_block = first / B::kParts;
    const std::byte* ahead = panel + static_cast<std::size_t>(first_block) * kBlockBytes + kPrefetchBytes;
    for (int b = 0; b * B::kParts < parts; ++b, ahead += kBlockBytes) {
      const QuantizedLayout::Place place = B::kLayout.place(first_block + b, blocks);
      const B block(panel + place.words, panel + place.halves, 0);
#pragma GCC unroll 8
      for (int part = 0; part < B::kParts; ++part) {
        const Prefetches<kPartLines> fetch{ahead + part * kPartBytes};
        const int to_part = b * B::kParts + part;
        Words w[8];
        block.weights(part, w);
        std::int8_t* to = weights[to_part];
        [&]<int... g>(std::integer_sequence<int, g...>) {
          ((fetch.template before<g>(),
            _mm512_store_si512(to + g * kTileRowBytes,
                               _mm512_sub_epi8(reinterpret_cast<__m512i>(w[g]), reinterpret_cast<__m512i>(offset)))),
           ...);
        }
        (std::make_integer_sequence<int, 8>{});
        for (int half = 0; half < kSums; ++half) {
          scale[to_part][half] = block.scale(part, half);
          if constexpr (kMinima) minus_minimum[to_part][half] = block.minus_minimum(part, half);
        }
      }
    }
  }
};

// Parts of a panel of Q8_0 where they lie: their bytes are those of a tile.
template <class B>
struct StoredParts {
  static_assert(B::kTerms == Terms::kOffset && B::kParts == 1 && B::kOffset == 128);
  static constexpr bool kHalves = false;
  static constexpr bool kMinima = false;
  static constexpr int kSums = 1;
  static constexpr bool kFetchesWhileMultiplying = true;
  static constexpr int kBytes = static_cast<int>(B::kLayout.panel_block_bytes());

  [[gnu::always_inline]] const void* weights_of(int part, int) const {
    return data + B::kLayout.place(part, blocks).words;
  }
  [[gnu::always_inline]] std::array<Floats, 1> scales_of(int part) const {
    return {Avx512::halves(data + B::kLayout.place(part, blocks).halves)};
  }

  // One of kShares shares of a part's prefetches, which like Prefetches are not asked for in a row.
  template <int kShares>
  [[gnu::always_inline]] void fetch_ahead(int part, int share) const {
    for (int line = share; line < (kBytes + 63) / 64; line += kShares)
      prefetch(data + part * kBytes + kPrefetchBytes + line * 64);
  }

  // As of OpenParts. REQUIRES: `first` is even.
  void open(const std::byte* panel, int blocks_of_panel, int first, int) {
    data = panel + static_cast<std::size_t>(first) * kBytes;
    blocks = blocks_of_panel - first;
  }

  const std::byte* data = nullptr;
  int blocks = 0;
};

// Parts of one panel times kRows rows of a group. kFetches: weights are fetched ahead meanwhile.
template <class Parts, int kRows, bool kFetches>
class GroupProduct {
 public:
  static constexpr int kSums = Parts::kSums;

  GroupProduct(const Parts& weights, const Q8Rows& x, int parts) : weights_(weights), x_(x), sums_(parts * kSums) {}

  // Adds to the totals of kRows rows. Between filling the pipeline and emptying it, no step asks what there is to do.
  [[gnu::always_inline]] void add(Floats* totals) {
    for (int first = 0; first < sums_ + kDelay; first += 4)
      if (first >= kFilled && first + 4 <= sums_)
        four<true>(first, totals);
      else
        four<false>(first, totals);
  }

 private:
  // Tiles are stored three products behind, and their sums used two stores behind, so that nothing waits.
  static constexpr int kStoreDelay = 3;
  static constexpr int kDelay = kStoreDelay + 2;
  static constexpr int kRing = 8;
  static constexpr int kFilled = 8;
  static_assert(kFilled >= kDelay && kRing > kDelay);
  static constexpr int kMagic = 0x4b400000;
  static constexpr bool kConverts = !Parts::kHalves;  // halves have more products than sums already
  static_assert(kQ8Block * 127 * 128 < 1 << 22);

  // Four steps, whose tiles have literal numbers. kAll: each has something to multiply, to store and to add.
  template <bool kAll>
  [[gnu::always_inline]] void four(int first, Floats* totals) {
    step<0, kAll>(first, totals);
    step<1, kAll>(first, totals);
    step<2, kAll>(first, totals);
    step<3, kAll>(first, totals);
  }

  template <int kStep, bool kAll>
  [[gnu::always_inline]] void step(int first, Floats* totals) {
    const int sum = first + kStep;
    const int stored = sum - kStoreDelay;
    if (kAll || (stored >= 0 && stored < sums_)) store_tile<(kStep - kStoreDelay) & 3>(ring_[stored % kRing]);
    if (kAll || sum < sums_)
      multiply_tile<kStep & 3>(x_.quants + sum / kSums * kGroupBytes + sum % kSums * 16,
                               weights_.weights_of(sum / kSums, sum % kSums));
    const int done = sum - kDelay;
    if constexpr (((kStep - kDelay) & (kSums - 1)) == kSums - 1)
      if (kAll || (done >= 0 && done < sums_)) add_part(done / kSums, totals);
  }

  // While the tile unit is in use, conversions and products share one port; sums and the stores of tiles share another.
  // So some integers become floats by conversion and some by two sums, so that both ports have as much to do: kMagic +
  // i, read as a float, is 1.5 * 2^23 + i, exactly where |i| < 2^22.
  [[gnu::always_inline]] Floats sum_of(int sum, int row) const {
    const __m512i integers = _mm512_load_si512(ring_[sum % kRing] + row * kPanel);
    if (kConverts && row % 3 == 0) return reinterpret_cast<Floats>(_mm512_cvtepi32_ps(integers));
    const __m512i magic = _mm512_set1_epi32(kMagic);
    return reinterpret_cast<Floats>(
        _mm512_sub_ps(_mm512_castsi512_ps(_mm512_add_epi32(integers, magic)), _mm512_castsi512_ps(magic)));
  }

  [[gnu::always_inline]] void add_part(int part, Floats* totals) const {
    const auto& scale = weights_.scales_of(part);
    const Q8Rows x = x_.at(static_cast<std::size_t>(part) * kRowGroup);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kFetches) weights_.template fetch_ahead<kRows>(part, r);
      const Floats row_scale = broadcast(x.scale[r]);
      if constexpr (!Parts::kHalves) {
        totals[r] = Avx512::fma(sum_of(part, r), scale[0] * row_scale, totals[r]);
        if constexpr (Parts::kMinima)
          totals[r] = Avx512::fma(weights_.minus_minimum[part][0], broadcast(x.scaled_sum[r]), totals[r]);
      } else {
        Floats sum = sum_of(2 * part, r) * scale[0];
        sum = Avx512::fma(sum_of(2 * part + 1, r), scale[1], sum);
        if constexpr (Parts::kMinima)
          for (int half = 0; half < 2; ++half)
            sum = Avx512::fma(weights_.minus_minimum[part][half],
                              broadcast(static_cast<float>(x.half_sum[2 * r + half]) * (-1.0F / 128)), sum);
        totals[r] = Avx512::fma(sum, row_scale, totals[r]);
      }
    }
  }

  const Parts& weights_;
  Q8Rows x_;
  int sums_;
  alignas(64) std::int32_t ring_[kRing][kRowGroup * kPanel];
};

// Adds products of the first `rows` rows of a group to what `out` has of them, or starts there.
template <int kRows, bool kFetches, class Parts>
[[gnu::always_inline]] inline void multiply_group(const Parts& weights, const Q8Rows& x, int parts, int rows,
                                                  __mmask16 outputs, bool starts, float* out, std::size_t out_stride) {
  Floats totals[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
    totals[r] = reinterpret_cast<Floats>(_mm512_maskz_loadu_ps(!starts && r < rows ? outputs : __mmask16{0},
                                                               out + static_cast<std::size_t>(r) * out_stride));
  GroupProduct<Parts, kRows, kFetches>(weights, x, parts).add(totals);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
    _mm512_mask_storeu_ps(out + static_cast<std::size_t>(r) * out_stride, r < rows ? outputs : __mmask16{0},
                          reinterpret_cast<__m512>(totals[r]));
}

// Panels and parts whose products are made of the same opened weights.
struct Chunk {
  int panel = 0;
  int panels = 0;
  int part = 0;
  int parts = 0;
};

// Multiplies all rows by a chunk, kRows of each group. Totals are kept in `out` between chunks.
template <class B, int kRows, class Parts>
void multiply_chunk(const PackedMatrix& weights, const Activations& x, const Chunk& chunk, Parts* open, float* out,
                    std::size_t out_stride) {
  const int all_parts = weights.inputs / kQ8Block;
  const int blocks = all_parts / B::kParts;
  const std::size_t panel_bytes = static_cast<std::size_t>(blocks) * B::kLayout.panel_block_bytes();
  for (int p = 0; p < chunk.panels; ++p)
    open[p].open(weights.data + static_cast<std::size_t>(chunk.panel + p) * panel_bytes, blocks, chunk.part,
                 chunk.parts);
  compiler_fence();
  for (int row = 0; row < x.rows; row += kRowGroup) {
    const int rows = x.rows - row < kRowGroup ? x.rows - row : kRowGroup;
    const Q8Rows group = x.q8.at(static_cast<std::size_t>(row) * static_cast<std::size_t>(all_parts) +
                                 static_cast<std::size_t>(chunk.part) * kRowGroup);
    for (int p = 0; p < chunk.panels; ++p) {
      const __mmask16 outputs = outputs_of(weights, chunk.panel + p);
      float* to = out + static_cast<std::size_t>(row) * out_stride + (chunk.panel + p) * kPanel;
      const bool starts = chunk.part == 0;
      if (Parts::kFetchesWhileMultiplying && row == 0)
        multiply_group<kRows, Parts::kFetchesWhileMultiplying>(open[p], group, chunk.parts, rows, outputs, starts, to,
                                                               out_stride);
      else
        multiply_group<kRows, false>(open[p], group, chunk.parts, rows, outputs, starts, to, out_stride);
    }
  }
}

// With fewer rows, vectors are faster.
template <class B>
constexpr int kLeastRows = OpenParts<B>::kHalves ? 17 : 14;
template <>
constexpr int kLeastRows<Block<Avx512, DType::kQ8_0>> = 3;

template <DType kType>
void multiply(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
              std::size_t out_stride) {
  using B = Block<Avx512, kType>;
  constexpr bool kStored = kType == DType::kQ8_0;
  using Parts = std::conditional_t<kStored, StoredParts<B>, OpenParts<B>>;
  static_assert(kChunkParts % B::kParts == 0 && kFewParts % B::kParts == 0);
  if (x.rows < kLeastRows<B>) return avx512::matmul(weights, x, panel_begin, panel_end, out, out_stride);
  const int all_parts = weights.inputs / kQ8Block;
  const auto multiply_all = [&]<int kRows>() {
    const Tiles tiles(kQ8Block / Parts::kSums, kRows);
    Parts parts[kChunkPanels];
    const auto multiply_next = [&](int panel, int panels, int part, int count) {
      multiply_chunk<B, kRows>(weights, x,
                               {panel, std::min(panels, panel_end - panel), part, std::min(count, all_parts - part)},
                               parts, out, out_stride);
    };
    if (x.rows <= kFewRows) {
      const int count = kStored ? all_parts : kFewParts;
      for (int panel = panel_begin; panel < panel_end; ++panel)
        for (int part = 0; part < all_parts; part += count) multiply_next(panel, 1, part, count);
      return;
    }
    // The same parts of the rows for all panels, before the next.
    for (int part = 0; part < all_parts; part += kChunkParts)
      for (int panel = panel_begin; panel < panel_end; panel += kChunkPanels)
        multiply_next(panel, kChunkPanels, part, kChunkParts);
  };
  if constexpr (kStored) {
    if (x.rows <= 4) return multiply_all.template operator()<4>();
    if (x.rows <= 8) return multiply_all.template operator()<8>();
    if (x.rows <= 12) return multiply_all.template operator()<12>();
  }
  multiply_all.template operator()<kRowGroup>();
}

}  // namespace

void matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
            std::size_t out_stride) {
  if (weights.type == DType::kBF16) return bf16_matmul(weights, x, panel_begin, panel_end, out, out_stride);
  if (!is_quantized(weights.type)) return avx512::matmul(weights, x, panel_begin, panel_end, out, out_stride);
  with_quantized_type(weights.type,
                      [&]<DType kType>() { multiply<kType>(weights, x, panel_begin, panel_end, out, out_stride); });
}

}  // namespace kvasir::amx
