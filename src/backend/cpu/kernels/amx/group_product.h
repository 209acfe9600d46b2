// Products of a group of up to 16 rows with parts of panels: the pipeline of tiles, and the orders in which it takes
// the parts. Internal to the translation unit that includes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/amx/weight_parts.h"

namespace kvasir::amx {
namespace {

constexpr int kGroupBytes = kRowGroup * kQ8Block;  // a block of 16 rows

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
  // Return which part of its panel the `count`th part of all is.
  [[gnu::always_inline]] int multiplied_part(int count) const { return count; }
  [[gnu::always_inline]] int added_part(int count) const { return count; }
  // Returns the memory to fetch while a part is added.
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

  // Adds to the totals of kRows rows, of the panel that the order is at. Between filling and emptying the pipeline,
  // steps have no conditions.
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

}  // namespace
}  // namespace kvasir::amx
