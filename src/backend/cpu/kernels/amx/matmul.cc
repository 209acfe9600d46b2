// Products of quantised weights with up to 16 rows at a time on the tile unit. A tile of 32 inputs gives the integer
// sums of 16 rows times 16 outputs; what is done with them is what quantized.h does, in the same order: the same bits.
#include <algorithm>
#include <array>
#include <utility>

#include "backend/cpu/kernels/amx/tiles.h"
#include "backend/cpu/kernels/avx512/quantized_instructions.h"

namespace kvasir::amx {
namespace {

constexpr int kGroupBytes = kRowGroup * kQ8Block;  // a block of 16 rows

// How much is opened at once. Many rows wait for the tile unit: long sums of four panels, and the rows of as many
// parts, stay in the second cache. Few rows wait for memory: so little that the weights fetched ahead meanwhile are
// those of the next chunk.
constexpr int kChunkParts = 64;
constexpr int kChunkPanels = 4;  // of a product in runs, too
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
  static constexpr int kFetchedBytes = 0;        // of a part, while it is multiplied: all were when parts were opened

  // Of the part that is kNext behind `part`.
  template <int kNext>
  [[gnu::always_inline]] const void* weights_of(int part, int half) const {
    return weights[part + kNext] + half * 4 * kTileRowBytes;
  }
  template <int kNext>
  [[gnu::always_inline]] const Floats* scales_of(int part) const {
    return scale[part + kNext];
  }

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
  static constexpr int kBytes = static_cast<int>(B::kLayout.panel_block_bytes());
  static constexpr int kFetchedBytes = kBytes;

  // As of OpenParts. REQUIRES: `part` is even.
  template <int kNext>
  [[gnu::always_inline]] const void* weights_of(int part, int) const {
    return data + part * kBytes + kPlaces[kNext].words;
  }
  template <int kNext>
  [[gnu::always_inline]] std::array<Floats, 1> scales_of(int part) const {
    return {Avx512::halves(data + part * kBytes + kPlaces[kNext].halves)};
  }

  // As of OpenParts. REQUIRES: `blocks` and `first` are even.
  void open(const std::byte* panel, int /*blocks*/, int first, int /*parts*/) {
    data = panel + static_cast<std::size_t>(first) * kBytes;
  }

  static constexpr QuantizedLayout::Place kPlaces[4] = {B::kLayout.place(0, 4), B::kLayout.place(1, 4),
                                                        B::kLayout.place(2, 4), B::kLayout.place(3, 4)};
  const std::byte* data = nullptr;
};

// The order in which a product takes the parts of its panels: those of one panel, one after the other. kFetches: what
// lies kPrefetchBytes ahead is fetched meanwhile.
template <class Parts, bool kFetchesAhead>
class OnePanel {
 public:
  static constexpr bool kFetches = kFetchesAhead;

  OnePanel(const Parts& panel, int parts) : panel_(panel), parts_(parts) {}

  int parts() const { return parts_; }
  [[gnu::always_inline]] const Parts& multiplied() const { return panel_; }
  [[gnu::always_inline]] const Parts& added() const { return panel_; }
  // Which part of its panel the `count`th of all is.
  [[gnu::always_inline]] int multiplied_part(int count) const { return count; }
  [[gnu::always_inline]] int added_part(int count) const { return count; }
  // What is fetched while a part is added.
  [[gnu::always_inline]] const std::byte* ahead(int part) const {
    return panel_.data + part * Parts::kFetchedBytes + kPrefetchBytes;
  }
  [[gnu::always_inline]] void before_multiplying(int /*count*/) {}
  [[gnu::always_inline]] void before_adding(int /*count*/, Floats* /*totals*/) {}

 private:
  const Parts& panel_;
  int parts_;
};

// Parts of a run: about kPrefetchBytes of Q8_0.
constexpr int kRunParts = 16;
// Products of fewer rows, to the next size of tiles, leave their rows in the nearest cache without runs.
constexpr int kLeastTileRowsOfRuns = 8;
constexpr bool takes_runs(int tile_rows, int rows, int parts) {
  return tile_rows >= kLeastTileRowsOfRuns && rows <= kFewRows && parts % kRunParts == 0;
}

// A run of parts of each panel in turn, then the next run of each: the rows of a run stay in the nearest cache. The run
// that follows is fetched meanwhile. The totals at hand are those of one panel: they are exchanged where a run of
// another begins, and finish() keeps the last.
template <class Parts, int kRows, bool kFetchesAhead>
class Runs {
 public:
  static constexpr bool kFetches = kFetchesAhead;

  static_assert(Parts::kSums == 1 && kRunParts % 4 == 0, "runs begin where GroupProduct asks for them");

  // `after` is what is read after the panels. `totals` of each panel are kept between its runs. REQUIRES: `parts` is a
  // multiple of kRunParts.
  Runs(const Parts* panels, int count, int parts, const std::byte* after, Floats (*totals)[kRows])
      : panels_(panels), count_(count), parts_(count * parts), after_(after), totals_(totals) {}

  int parts() const { return parts_; }
  [[gnu::always_inline]] const Parts& multiplied() const { return panels_[multiplied_.panel]; }
  [[gnu::always_inline]] const Parts& added() const { return panels_[added_.panel]; }
  [[gnu::always_inline]] int multiplied_part(int count) const { return count - multiplied_.shift; }
  [[gnu::always_inline]] int added_part(int count) const { return count - added_.shift; }
  [[gnu::always_inline]] const std::byte* ahead(int part) const { return ahead_ + part * Parts::kFetchedBytes; }

  // Called where a run may begin.
  [[gnu::always_inline]] void before_multiplying(int count) {
    if (count == multiplied_.end) multiplied_ = run(multiplied_.index + 1);
  }
  [[gnu::always_inline]] void before_adding(int count, Floats* totals) {
    if (count != added_.end || count >= parts_) return;
    if (added_.index >= 0) move(totals, totals_[added_.panel]);
    added_ = run(added_.index + 1);
    move(totals_[added_.panel], totals);
    if constexpr (kFetches) {
      const int next = added_.index + 1;
      ahead_ =
          added_.end < parts_ ? panels_[next % count_].data + next / count_ * kRunParts * Parts::kFetchedBytes : after_;
      ahead_ -= added_.index / count_ * kRunParts * Parts::kFetchedBytes;
    }
  }
  [[gnu::always_inline]] void finish(const Floats* totals) const { move(totals, totals_[added_.panel]); }

 private:
  struct Run {
    int index = -1;
    int panel = 0;
    int shift = 0;  // from a part of the panel to its place among all
    int end = 0;    // of the places of its parts
  };

  Run run(int index) const {
    return {index, index % count_, (index - index / count_) * kRunParts, (index + 1) * kRunParts};
  }
  [[gnu::always_inline]] static void move(const Floats* from, Floats* to) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) to[r] = from[r];
  }

  const Parts* panels_;
  int count_;
  int parts_;  // of all runs
  const std::byte* after_;
  Floats (*totals_)[kRows];
  Run multiplied_;
  Run added_;
  const std::byte* ahead_ = nullptr;
};

// Parts of panels, in the order of `Order`, times kRows rows of a group.
template <class Parts, int kRows, class Order>
class GroupProduct {
 public:
  static constexpr int kSums = Parts::kSums;

  GroupProduct(const Order& order, const Q8Rows& x) : order_(order), x_(x), sums_(order.parts() * kSums) {}

  // Adds to the totals of kRows rows, which are those that the order says. Between filling the pipeline and emptying
  // it, no step asks what there is to do.
  [[gnu::always_inline]] void add(Floats* totals) {
    int first = 0;
    for (const int end : {kFilled, sums_ + kDelay}) {
      for (; first < end; first += 4) four<false>(first, totals);
      for (; first + 4 <= sums_; first += 4) four<true>(first, totals);
    }
  }
  const Order& order() const { return order_; }

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
    order_.before_multiplying(first / kSums);
    const int multiplied = order_.multiplied_part(first / kSums);
    step<0, kAll>(first, multiplied, order_.added_part((first - 8) / kSums), totals);
    order_.before_adding((first - 4) / kSums, totals);
    const int added = order_.added_part((first - 4) / kSums);
    step<1, kAll>(first, multiplied, added, totals);
    step<2, kAll>(first, multiplied, added, totals);
    step<3, kAll>(first, multiplied, added, totals);
  }

  // `multiplied` and `added` are the parts of a multiple of four steps.
  template <int kStep, bool kAll>
  [[gnu::always_inline]] void step(int first, int multiplied, int added, Floats* totals) {
    const int sum = first + kStep;
    const int stored = sum - kStoreDelay;
    if (kAll || (stored >= 0 && stored < sums_)) store_tile<(kStep - kStoreDelay) & 3>(ring_[stored % kRing]);
    if (kAll || sum < sums_)
      multiply_tile<kStep & 3>(x_.quants + (multiplied + kStep / kSums) * kGroupBytes + sum % kSums * 16,
                               order_.multiplied().template weights_of<kStep / kSums>(multiplied, sum % kSums));
    const int done = sum - kDelay;
    constexpr int kAdded = (kStep - kDelay) & 3;
    if constexpr ((kAdded & (kSums - 1)) == kSums - 1)
      if (kAll || (done >= 0 && done < sums_)) add_part<kAdded / kSums>(done, added, totals);
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

  // `done`: the last product of the part that is kNext behind `first_part`.
  template <int kNext>
  [[gnu::always_inline]] void add_part(int done, int first_part, Floats* totals) const {
    const Parts& weights = order_.added();
    const int part = first_part + kNext;
    const auto& scale = weights.template scales_of<kNext>(first_part);
    const Q8Rows x = x_.at(static_cast<std::size_t>(part) * kRowGroup);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      // Not in a row, like Prefetches.
      if constexpr (Order::kFetches)
        for (int line = r; line < (Parts::kFetchedBytes + 63) / 64; line += kRows)
          prefetch(order_.ahead(part) + line * 64);
      const Floats row_scale = broadcast(x.scale[r]);
      if constexpr (!Parts::kHalves) {
        totals[r] = Avx512::fma(sum_of(done, r), scale[0] * row_scale, totals[r]);
        if constexpr (Parts::kMinima)
          totals[r] = Avx512::fma(weights.minus_minimum[part][0], broadcast(x.scaled_sum[r]), totals[r]);
      } else {
        Floats sum = sum_of(done - 1, r) * scale[0];
        sum = Avx512::fma(sum_of(done, r), scale[1], sum);
        if constexpr (Parts::kMinima)
          for (int half = 0; half < 2; ++half)
            sum = Avx512::fma(weights.minus_minimum[part][half],
                              broadcast(static_cast<float>(x.half_sum[2 * r + half]) * (-1.0F / 128)), sum);
        totals[r] = Avx512::fma(sum, row_scale, totals[r]);
      }
    }
  }

  Order order_;
  Q8Rows x_;
  int sums_;
  alignas(64) std::int32_t ring_[kRing][kRowGroup * kPanel];
};

// Where products with one panel begin or go on: totals of the first `rows` rows of a group.
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
  Floats totals[kChunkPanels][kRows];
  for (int p = 0; p < count; ++p) output(p).template load<kRows>(totals[p]);
  Floats of_run[kRows]{};
  GroupProduct<Parts, kRows, Runs<Parts, kRows, kFetches>> product({panels, count, parts, after, totals}, x);
  product.add(of_run);
  product.order().finish(of_run);
  for (int p = 0; p < count; ++p) output(p).template store<kRows>(totals[p]);
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
void multiply_chunk(const PackedMatrix& weights, const Activations& x, const Chunk& chunk, Parts* panels, float* out,
                    std::size_t out_stride) {
  const int all_parts = weights.inputs / kQ8Block;
  const int blocks = all_parts / B::kParts;
  const std::size_t panel_bytes = static_cast<std::size_t>(blocks) * B::kLayout.panel_block_bytes();
  const std::byte* data = weights.data + static_cast<std::size_t>(chunk.panel) * panel_bytes;
  for (int p = 0; p < chunk.panels; ++p)
    panels[p].open(data + static_cast<std::size_t>(p) * panel_bytes, blocks, chunk.part, chunk.parts);
  compiler_fence();
  for (int row = 0; row < x.rows; row += kRowGroup) {
    const Q8Rows group = x.q8.at(static_cast<std::size_t>(row) * static_cast<std::size_t>(all_parts) +
                                 static_cast<std::size_t>(chunk.part) * kRowGroup);
    const auto output = [&](int p) {
      return Output{out + static_cast<std::size_t>(row) * out_stride + (chunk.panel + p) * kPanel, out_stride,
                    std::min(kRowGroup, x.rows - row), outputs_of(weights, chunk.panel + p), chunk.part == 0};
    };
    constexpr bool kFetches = Parts::kFetchedBytes > 0;
    if constexpr (kFetches) {
      if (takes_runs(kRows, x.rows, chunk.parts)) {
        const std::byte* after = data + static_cast<std::size_t>(chunk.panels) * panel_bytes;
        if (row == 0)
          multiply_runs<kRows, true>(panels, chunk.panels, group, chunk.parts, after, output);
        else
          multiply_runs<kRows, false>(panels, chunk.panels, group, chunk.parts, after, output);
        continue;
      }
    }
    for (int p = 0; p < chunk.panels; ++p) {
      if (kFetches && row == 0)
        multiply_panel<kRows, kFetches>(panels[p], group, chunk.parts, output(p));
      else
        multiply_panel<kRows, false>(panels[p], group, chunk.parts, output(p));
    }
  }
}

// Multiplies by weights where they lie. REQUIRES: at most kRows rows, or kRows == kRowGroup; an even number of parts.
template <class B, int kRows>
void multiply_stored(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                     std::size_t out_stride) {
  const Tiles tiles(kQ8Block, kRows);
  StoredParts<B> parts[kChunkPanels];
  for (int panel = panel_begin; panel < panel_end; panel += kChunkPanels)
    multiply_chunk<B, kRows>(weights, x,
                             {panel, std::min(kChunkPanels, panel_end - panel), 0, weights.inputs / kQ8Block}, parts,
                             out, out_stride);
}

template <class B>
void multiply_opened(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                     std::size_t out_stride) {
  static_assert(kChunkParts % B::kParts == 0 && kFewParts % B::kParts == 0);
  const Tiles tiles(kQ8Block / OpenParts<B>::kSums);
  const int all_parts = weights.inputs / kQ8Block;
  OpenParts<B> parts[kChunkPanels];
  const auto multiply_next = [&](int panel, int panels, int part, int count) {
    multiply_chunk<B, kRowGroup>(weights, x,
                                 {panel, std::min(panels, panel_end - panel), part, std::min(count, all_parts - part)},
                                 parts, out, out_stride);
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
  if (x.rows < kLeastOpenedRows<B>) return avx512::matmul(weights, x, panel_begin, panel_end, out, out_stride);
  multiply_opened<B>(weights, x, panel_begin, panel_end, out, out_stride);
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
