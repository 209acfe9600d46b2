// Attention over pages of 16 bits on the tile unit. Queries and weights enter as the sum of two numbers of bf16, and
// numbers of a page exactly: f16 as the sum of two numbers of bf16, bf16 as itself. A product loses at most 2^-14 of
// itself: less than 2^-16 for what two numbers of bf16 cannot hold, and 2^-15 for low times low. Denormals of bf16
// count as zero, and infinities become NaN (infinity - infinity = NaN is their low part).
//   q * k = low(q) * high(k) + high(q) * high(k) + high(q) * low(k); weights times values likewise.
// A result does not depend on what else is in a tile, so one query has the bits that it has among many.
#pragma once

#include <algorithm>

#include "backend/cpu/kernels/amx/bf16_pairs.h"
#include "backend/cpu/kernels/attend_runs.h"
#include "backend/cpu/kernels/prefetch.h"

namespace kvasir::amx {
namespace {

constexpr int kBlockQueries = 16;
constexpr int kMostBlocks = 8;  // that share one opened page
constexpr int kMostQueries = kMostBlocks * kBlockQueries;
constexpr int kWeighed = 4;      // queries weighed together
constexpr int kPairDims = 32;    // dimensions of a tile: number i is paired with number i + 16
constexpr int kQueryTiles = 64;  // for all blocks: heads of more than 128 dimensions leave room for fewer blocks
constexpr std::ptrdiff_t kVectorBytes = 32;

[[gnu::always_inline]] inline void scale(float* x, int n, float factor) {
  const __m512 of = _mm512_set1_ps(factor);
  for (int i = 0; i < n; i += 16) _mm512_storeu_ps(x + i, _mm512_mul_ps(_mm512_loadu_ps(x + i), of));
}

// Returns whether all n numbers are finite and none is zero.
[[gnu::always_inline]] inline bool nonzero_and_finite(const float* x, int n) {
  constexpr int kNanZeroOrInfinity = 0x9f;
  __mmask16 other = 0;
  for (int i = 0; i < n; i += 16) other |= _mm512_fpclass_ps_mask(_mm512_loadu_ps(x + i), kNanZeroOrInfinity);
  return other == 0;
}

// Blocks of queries read each page in turn, which is opened for all of them. The tile unit works on the scores of later
// blocks and on the values of the block before while vectors open pages and weigh. Of its tiles, 0 holds scores, 1 sums
// of values, 2 and 3 weights (low and high), 4 and 5 queries, 6 and 7 numbers of a page.
template <KvType kType, int kSlotVectors>
class TileAttention {
 public:
  TileAttention(const AttentionPartial& partial, const AttentionState& state)
      : partial_(partial),
        state_(state),
        dim_(partial.head_dim),
        dim_tiles_((dim_ + kPairDims - 1) / kPairDims),
        columns_(dim_ / 16),
        tile_rows_(std::min(partial.rows * partial.group, kBlockQueries)) {}

  void attend() {
    const int queries = partial_.rows * partial_.group;
    const Tiles tiles(kTileRowBytes, tile_rows_);
    // Queries are weighed four at a time. The scores of padding are zero, since leftover denormals would be slow.
    if (tile_rows_ % kWeighed != 0)
      for (Scores& scores : scores_) std::fill(scores[tile_rows_], scores[kBlockQueries - 1] + kSlots, 0.0F);
    const int most = std::min(kMostBlocks, kQueryTiles / (2 * dim_tiles_)) * kBlockQueries;
    for (first_ = 0; first_ < queries; first_ += most) {
      count_ = std::min(most, queries - first_);
      attend_queries();
    }
  }

 private:
  static constexpr int kSlots = kSlotVectors * 16;
  static constexpr int kSlotTiles = (kSlotVectors + 1) / 2;
  static constexpr bool kLow = kType == KvType::kF16;  // numbers of a page have low parts
  using Scores = float[kBlockQueries][kSlots];

  // The slots of an entry that the queries of a block see.
  struct Visibility {
    int entry = -1;
    int block = 0;
    bool whole = false;  // all queries see all slots that are open
    SlotMask live[kBlockQueries];
  };

  void attend_queries() {
    prepare_queries();
    const int blocks = (count_ + kBlockQueries - 1) / kBlockQueries;
    for (int e = 0; e < partial_.entries; ++e) {
      SlotMask any = 0;
      SlotMask all = ~SlotMask{0};
      for (int row = first_ / partial_.group; row <= (first_ + count_ - 1) / partial_.group; ++row) {
        any |= mask(row, e);
        all &= mask(row, e);
      }
      if (any == 0) continue;
      const std::byte* next = page_ahead(partial_, e);
      ahead_ = LineFetch(next, next == partial_.pages[e] ? 0 : static_cast<std::size_t>(2 * dim_ * kSlots) * 2);
      fetches_evenly_ = blocks == 1;
      open_keys(partial_.pages[e]);
      finish_sums();
      begin_scores(0);
      open_values<true>(values_of(e), any);
      finish_scores();
      for (int block = 0; block < blocks; ++block) {
        if (block + 1 < blocks) begin_scores(block + 1);
        Visibility& seen = visibilities_[block % 2];
        seen.entry = e;
        seen.block = block;
        if (all == slot_range(0, kSlots) && !observes() && queries_of(block) == kBlockQueries) {
          seen.whole = true;
          weigh_block<true>(seen);
        } else {
          if (!see(seen)) {
            finish_scores();
            finish_sums();
            continue;
          }
          weigh_block<false>(seen);
        }
        finish_scores();
        finish_sums();
        begin_sums(seen);
      }
    }
    finish_sums();
    std::copy_n(maximum_, count_, state_.maximum + first_);
    std::copy_n(total_, count_, state_.sum + first_);
  }
  bool observes() const { return partial_.weights != nullptr; }
  SlotMask mask(int row, int entry) const {
    return partial_.masks[static_cast<std::size_t>(row) * partial_.mask_row_stride + static_cast<std::size_t>(entry)];
  }

  const std::byte* values_of(int entry) const {
    return partial_.pages[entry] + static_cast<std::size_t>(dim_ * kSlots) * 2;
  }
  float* sums_of(int block) const {
    return state_.weighted + static_cast<std::size_t>(first_ + block * kBlockQueries) * static_cast<std::size_t>(dim_);
  }
  int queries_of(int block) const { return std::min(kBlockQueries, count_ - block * kBlockQueries); }
  Tile* query_tiles(int block) { return queries_ + block * 2 * dim_tiles_; }

  void prepare_queries() {
    const int padded = (count_ + kWeighed - 1) / kWeighed * kWeighed;
    std::fill(maximum_ + count_, maximum_ + padded, 0.0F);
    std::fill(total_ + count_, total_ + padded, 0.0F);
    std::copy_n(state_.maximum + first_, count_, maximum_);
    std::copy_n(state_.sum + first_, count_, total_);
    const Pairs pairs;
    for (int i = count_; i < padded; ++i)
      for (int t = 0; t < 2 * dim_tiles_; ++t)
        _mm512_store_si512(row_of(query_tiles(i / kBlockQueries)[t], i % kBlockQueries), _mm512_setzero_si512());
    for (int i = 0; i < count_; ++i) {
      const QueryBlock<1> query(partial_, state_, first_ + i);
      masks_[i] = query.masks[0];
      observed_[i] = query.observed[0];
      Tile* high = query_tiles(i / kBlockQueries);
      Tile* low = high + dim_tiles_;
      for (int t = 0; t < dim_tiles_; ++t) {
        const float* q = query.q[0] + t * kPairDims;
        const __m512 second = t * kPairDims + 16 < dim_ ? _mm512_loadu_ps(q + 16) : _mm512_setzero_ps();
        pairs.split(_mm512_loadu_ps(q), second, row_of(high[t], i % kBlockQueries), row_of(low[t], i % kBlockQueries));
      }
    }
  }

  // Keys are [head_dim][slots]; a row of a tile has two dimensions of 16 slots. Meanwhile pending sums are finished.
  void open_keys(const std::byte* keys) {
    for (int t = 0; t < dim_tiles_; ++t) {
      for (int half = 0; half < 2; ++half) {
        if (t * kPairDims + 16 < dim_) {
          open_dims<true>(keys, t, half * 8);
        } else {
          open_dims<false>(keys, t, half * 8);
        }
        if (pending_ != nullptr) add_to(std::min(2 * t + half + 1, columns_));
      }
    }
  }
  template <bool kBoth>
  [[gnu::always_inline]] void open_dims(const std::byte* keys, int t, int from) {
    constexpr std::ptrdiff_t kDimBytes = kSlotVectors * kVectorBytes;
    constexpr int kLines = (kSlotVectors + 1) / 2;
    const Pairs pairs;
    const std::byte* a = keys + (t * kPairDims + from) * kDimBytes;
    const std::byte* b = a + 16 * kDimBytes;
    std::uint16_t* high = row_of(keys_[0][t * kSlotVectors], from);
    std::uint16_t* low = row_of(keys_[1][t * kSlotVectors], from);
    const auto open = [&]<int kRowLines>() {
      const std::byte* lines = ahead_.take(8 * kRowLines, a);
#pragma GCC unroll 8
      for (int row = 0; row < 8; ++row) {
        for (int line = 0; line < kRowLines; ++line) prefetch(lines + (row * kRowLines + line) * kLineBytes);
        for (int v = 0; v < kSlotVectors; ++v) {
          const __m512 first = load16<kType>(a + row * kDimBytes + v * kVectorBytes);
          const __m512 second = kBoth ? load16<kType>(b + row * kDimBytes + v * kVectorBytes) : _mm512_setzero_ps();
          const int at = v * 16 * kTileRow + row * kTileRow;
          pairs.open<kType>(first, second, high + at, low + at);
        }
      }
    };
    if (fetches_evenly_)
      open.template operator()<kLines>();
    else
      open.template operator()<2 * kLines>();
  }

  // Values are [slots][head_dim]; a row of a tile has two slots of 16 dimensions, zeros for slots that are not in
  // `live`. kScores: meanwhile scores that were begun are computed.
  template <bool kScores>
  void open_values(const std::byte* values, SlotMask live) {
    opened_ = live;
    const std::ptrdiff_t slot_bytes = columns_ * kVectorBytes;
    const Pairs pairs;
    for (int t = 0; t < kSlotTiles; ++t)
      for (int row = 0; row < 16; ++row) {
        const int slot = t * 2 * 16 + row;
        const std::byte* a = values + slot * slot_bytes;
        const std::byte* b = a + 16 * slot_bytes;
        const bool first = (live >> slot & 1) != 0;
        const bool second = kSlotVectors > 1 && (live >> (slot + 16) & 1) != 0;
        std::uint16_t* high = row_of(values_[0][t * columns_], row);
        std::uint16_t* low = row_of(values_[1][t * columns_], row);
        const std::byte* lines = kScores ? ahead_.take(columns_, a) : nullptr;
        const auto open = [&](auto&& load_first, auto&& load_second) {
#pragma GCC unroll 4
          for (int c = 0; c < columns_; ++c) {
            if constexpr (kScores) prefetch(lines + c * kLineBytes);
            pairs.open<kType>(load_first(a + c * kVectorBytes), load_second(b + c * kVectorBytes),
                              high + c * 16 * kTileRow, low + c * 16 * kTileRow);
          }
        };
        const auto zero = [](const std::byte*) { return _mm512_setzero_ps(); };
        if (first && second) {
          open(load16<kType>, load16<kType>);
        } else if (first) {
          open(load16<kType>, zero);
        } else if (second) {
          open(zero, load16<kType>);
        } else {
          open(zero, zero);
        }
        if constexpr (kScores)
          score_to(std::min(2 * t * dim_tiles_ + std::min(row + 1, 8) * dim_tiles_ / 4, score_units()));
      }
  }

  // The scores of a block with an entry are computed unit by unit: a unit is 32 dimensions of 16 slots.
  void begin_scores(int block) {
    scored_block_ = block;
    scored_units_ = 0;
    scored_vector_ = 0;
    scored_tile_ = 0;
  }
  int score_units() const {
    return kSlotVectors * dim_tiles_;
  }
  void finish_scores() {
    score_to(score_units());
  }
  void score_to(int units) {
    compiler_fence();
    for (; scored_units_ < units; ++scored_units_) {
      score_unit(scored_vector_, scored_tile_);
      if (++scored_tile_ == dim_tiles_) {
        scored_tile_ = 0;
        ++scored_vector_;
      }
    }
    compiler_fence();
  }
  void score_unit(int v, int t) {
    const Tile* high_q = query_tiles(scored_block_);
    const Tile* low_q = high_q + dim_tiles_;
    if (fetches_evenly_) ahead_.fetch(2);
    if (t == 0) _tile_zero(0);
    _tile_loadd(4, low_q[t], kTileRowBytes);
    _tile_loadd(6, keys_[0][t * kSlotVectors + v], kTileRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, high_q[t], kTileRowBytes);
    _tile_dpbf16ps(0, 5, 6);
    if constexpr (kLow) {
      _tile_loadd(7, keys_[1][t * kSlotVectors + v], kTileRowBytes);
      _tile_dpbf16ps(0, 5, 7);
    }
    if (t + 1 == dim_tiles_) _tile_stored(0, scores_[scored_block_ % 2][0] + v * 16, kSlots * sizeof(float));
  }

  // Sets what the queries of the block see. Returns whether any sees a slot.
  bool see(Visibility& seen) const {
    const int queries = queries_of(seen.block);
    const SlotMask* const* masks = masks_ + seen.block * kBlockQueries;
    SlotMask any = 0;
    SlotMask all = ~SlotMask{0};
    for (int i = 0; i < queries; ++i) {
      seen.live[i] = masks[i][seen.entry];
      any |= seen.live[i];
      all &= seen.live[i];
    }
    for (int i = queries; i < kBlockQueries; ++i) seen.live[i] = 0;
    seen.whole = all == opened_;
    return any != 0;
  }

  // Takes the scores of a block into maxima and sums, and sets the tiles of weights. Meanwhile the tile unit goes on
  // with what was begun. kPlain: all 16 queries see all slots, and weights are not observed.
  template <bool kPlain>
  void weigh_block(const Visibility& seen) {
    const int queries = queries_of(seen.block);
    for (int from = 0; from < queries; from += kWeighed) {
      score_to(score_units() * (from + kWeighed) >> 4);
      if (pending_ != nullptr) add_to(columns_ * (from + kWeighed) >> 4);
      weigh_queries<kPlain>(seen, from);
    }
  }
  template <bool kPlain>
  [[gnu::always_inline]] void weigh_queries(const Visibility& seen, int from) {
    const Scores& scores = scores_[seen.block % 2];
    auto& weights = weights_[seen.block % 2];
    const Pairs pairs;
    const int first = seen.block * kBlockQueries + from;
    const auto live = [&](int i, int v) {
      return static_cast<__mmask16>(kPlain ? 0xffff : seen.live[from + i] >> (v * 16));
    };
    __m512 score[kWeighed][kSlotVectors];
    __m512 highest[kWeighed];
    for (int i = 0; i < kWeighed; ++i) {
      highest[i] = _mm512_set1_ps(maximum_[first + i]);
      for (int v = 0; v < kSlotVectors; ++v) {
        score[i][v] = _mm512_load_ps(scores[from + i] + v * 16);
        highest[i] = kPlain ? _mm512_max_ps(highest[i], score[i][v])
                            : _mm512_mask_max_ps(highest[i], live(i, v), highest[i], score[i][v]);
      }
    }
    const __m512 most = avx512::Vectors::max_four(highest);
    __m512 sums[kWeighed];
    for (int i = 0; i < kWeighed; ++i) {
      const __m512 of_query = avx512::Vectors::all_of_quarter(most, i);
      if (fetches_evenly_ && from == 0) ahead_.fetch(kSlotVectors * dim_tiles_);
      __m512 weight[kSlotTiles * 2];
      for (int v = 0; v < kSlotVectors; ++v) {
        const __m512 p = exp_of_difference(_mm512_sub_ps(score[i][v], of_query));
        weight[v] = kPlain ? p : _mm512_maskz_mov_ps(live(i, v), p);
        sums[i] = v == 0 ? weight[v] : _mm512_add_ps(sums[i], weight[v]);
      }
      if constexpr (kSlotVectors == 1) weight[1] = _mm512_setzero_ps();
      for (int t = 0; t < kSlotTiles; ++t)
        pairs.split(weight[t * 2], weight[t * 2 + 1], row_of(weights[0][t], from + i), row_of(weights[1][t], from + i));
      if constexpr (!kPlain)
        if (observes() && seen.live[from + i] != 0) observe(first + i, seen.entry, weight, _mm512_cvtss_f32(of_query));
    }
    // Where the highest score changed, earlier sums are scaled to it.
    const __m128 before = _mm_load_ps(maximum_ + first);
    const __m128 maximum = avx512::Vectors::first_of_quarters(most);
    _mm_store_ps(maximum_ + first, maximum);
    // NaN counts as unchanged: a query that sees nothing of the entry keeps its state.
    const __m128 unchanged = _mm_cmp_ps(maximum, before, _CMP_EQ_UQ);
    const int same = _mm_movemask_ps(unchanged);
    __m128 keep = _mm_set1_ps(1.0F);
    if (same != 0xf) {
      keep = _mm_blendv_ps(avx512::Vectors::exp_four(_mm_sub_ps(before, maximum)), keep, unchanged);
      alignas(16) float factors[kWeighed];
      _mm_store_ps(factors, keep);
      for (int i = 0; i < kWeighed; ++i)
        if ((same >> i & 1) == 0) scale(sums_of(seen.block) + (from + i) * dim_, dim_, factors[i]);
    }
    _mm_store_ps(total_ + first, _mm_fmadd_ps(_mm_load_ps(total_ + first), keep,
                                              avx512::Vectors::first_of_quarters(avx512::Vectors::sum_four(sums))));
  }
  void observe(int query, int entry, const __m512* weight, float maximum) const {
    for (int v = 0; v < kSlotVectors; ++v)
      _mm512_storeu_ps(observed_[query] + (entry * kSlotVectors + v) * 16, weight[v]);
    partial_.weight_maxima[static_cast<std::size_t>(first_ + query) * partial_.weight_maximum_stride +
                           static_cast<std::size_t>(entry)] = maximum;
  }

  // The weighted values of a block are added to its sums column by column, of 16 dimensions; at once where that cannot
  // be done in place.
  void begin_sums(const Visibility& seen) {
    const int queries = queries_of(seen.block);
    if (!seen.whole || queries != tile_rows_) return add_apart(seen, queries);
    pending_ = &seen;
    added_columns_ = 0;
  }
  void finish_sums() {
    if (pending_ != nullptr) add_to(columns_);
    pending_ = nullptr;
  }
  void add_to(int columns) {
    compiler_fence();
    for (; added_columns_ < columns; ++added_columns_) add_column(*pending_, sums_of(pending_->block), added_columns_);
    compiler_fence();
  }
  // sums [queries][head_dim] += weights * values, of one column.
  void add_column(const Visibility& seen, float* sums, int column) {
    const std::size_t stride = static_cast<std::size_t>(dim_) * sizeof(float);
    const auto& weights = weights_[seen.block % 2];
    if (fetches_evenly_) ahead_.fetch(kSlotVectors);
    _tile_loadd(1, sums + column * 16, stride);
    for (int t = 0; t < kSlotTiles; ++t) {
      if (kSlotTiles > 1 || column == 0) {
        _tile_loadd(2, weights[1][t], kTileRowBytes);
        _tile_loadd(3, weights[0][t], kTileRowBytes);
      }
      _tile_loadd(6, values_[0][t * columns_ + column], kTileRowBytes);
      _tile_dpbf16ps(1, 2, 6);
      _tile_dpbf16ps(1, 3, 6);
      if constexpr (kLow) {
        _tile_loadd(7, values_[1][t * columns_ + column], kTileRowBytes);
        _tile_dpbf16ps(1, 3, 7);
      }
    }
    _tile_stored(1, sums + column * 16, stride);
  }

  // Adds the weighted values for a block that is not full, or in which some query does not see every opened slot. Such
  // a slot adds zero times its value to the query's sums. That changes neither a finite sum nor its sign, unless the
  // sum is zero. Where a sum is zero or not finite, the query is computed again with the slots that it sees alone.
  void add_apart(const Visibility& seen, int queries) {
    const SlotMask opened = opened_;
    float* sums = sums_of(seen.block);
    add_copied(seen, queries);
    bool recompute[kBlockQueries];
    for (int i = 0; i < queries; ++i) {
      recompute[i] = seen.live[i] != 0 && seen.live[i] != opened && !nonzero_and_finite(copied_ + i * dim_, dim_);
      if (seen.live[i] != 0 && !recompute[i]) std::copy_n(copied_ + i * dim_, dim_, sums + i * dim_);
    }
    for (int i = 0; i < queries; ++i) {
      if (!recompute[i]) continue;
      open_values<false>(values_of(seen.entry), seen.live[i]);
      add_copied(seen, queries);
      for (int j = i; j < queries; ++j) {
        if (!recompute[j] || seen.live[j] != seen.live[i]) continue;
        std::copy_n(copied_ + j * dim_, dim_, sums + j * dim_);
        recompute[j] = false;
      }
    }
    if (opened_ != opened) open_values<false>(values_of(seen.entry), opened);
  }
  void add_copied(const Visibility& seen, int queries) {
    std::copy_n(sums_of(seen.block), queries * dim_, copied_);
    compiler_fence();
    for (int column = 0; column < columns_; ++column) add_column(seen, copied_, column);
    compiler_fence();
  }

  const AttentionPartial& partial_;
  const AttentionState& state_;
  const int dim_;
  const int dim_tiles_;
  const int columns_;
  const int tile_rows_;  // of sums, scores, queries and weights
  int first_ = 0;
  int count_ = 0;
  SlotMask opened_ = 0;  // the slots that values_ holds
  int scored_block_ = 0;
  LineFetch ahead_;  // the next entry's page
  // A single block is limited by memory, so its prefetches are spread over all steps, in about the shares of their
  // time: of a page, opening keys and values asks for 1/4 and 1/2, scores and sums for 1/16 each, weighing for 1/8.
  bool fetches_evenly_ = false;
  int scored_units_ = 0;  // scored_vector_ * dim_tiles_ + scored_tile_, counted for speed
  int scored_vector_ = 0;
  int scored_tile_ = 0;
  const Visibility* pending_ = nullptr;  // its weights are ready, and values are to be added
  int added_columns_ = 0;
  Visibility visibilities_[2];
  alignas(64) float maximum_[kMostQueries];
  alignas(64) float total_[kMostQueries];
  const SlotMask* masks_[kMostQueries];
  float* observed_[kMostQueries];
  // [high, low] each.
  alignas(64) Tile queries_[kQueryTiles];                               // [block][high, low][dim_tiles]
  alignas(64) Tile keys_[2][kSlotVectors * (kMaxHeadDim / kPairDims)];  // [dim_tiles][kSlotVectors]
  alignas(64) Tile values_[2][kSlotTiles * (kMaxHeadDim / 16)];         // [kSlotTiles][columns]
  alignas(64) Tile weights_[2][2][kSlotTiles];                          // of two blocks
  alignas(64) Scores scores_[2];                                        // likewise
  alignas(64) float copied_[kBlockQueries * kMaxHeadDim];
};
static_assert(sizeof(TileAttention<KvType::kF16, 4>) < 512 * 1024, "it is on the stack of a worker thread");

}  // namespace
}  // namespace kvasir::amx
