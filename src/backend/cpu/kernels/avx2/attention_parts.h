// Parts of attention that entries of all formats share. Internal to the translation unit that includes it.
#pragma once

#include "backend/cpu/kernels/attend_runs.h"
#include "backend/cpu/kernels/avx2/simd.h"

namespace kvasir::avx2 {
namespace {

// Scores of kQueries queries with 16 slots of a page, whose keys have `row_bytes` for each dimension. `q` is
// [head_dim][kQueries]; each score sums over the dimensions in order. kFetch: also fetches the line that is
// `ahead` bytes beyond each row.
template <KvType kType, int kQueries, bool kFetch>
[[gnu::always_inline]] inline void slot_scores(const std::byte* keys, std::size_t row_bytes, int head_dim,
                                               const float* q, __m256 (&score)[kQueries][2], std::ptrdiff_t ahead) {
  for (int i = 0; i < kQueries; ++i) score[i][0] = score[i][1] = _mm256_setzero_ps();
  for (int d = 0; d < head_dim; ++d, keys += row_bytes, q += kQueries) {
    if constexpr (kFetch) __builtin_prefetch(keys + ahead, 0, 2);
    const __m256 low = load8<kType>(keys);
    const __m256 high = load8<kType>(keys + 8 * kElementBytes<kType>);
    for (int i = 0; i < kQueries; ++i) {
      const __m256 a = _mm256_broadcast_ss(q + i);
      score[i][0] = _mm256_fmadd_ps(a, low, score[i][0]);
      score[i][1] = _mm256_fmadd_ps(a, high, score[i][1]);
    }
  }
}

// weighted[i][0 .. 16) = weighted * keep[i] + sum over live slots of weight[i][s] * value[s], slots in order, where
// value_of(s) is a slot's value. A slot that only some of the queries see is not even added as zero to the others: zero
// times infinity, and zero added to -0, would tell that somebody beside them saw it.
template <KvType kType, int kQueries, bool kFetch = false, class ValueOf>
[[gnu::always_inline]] inline void add_values(const ValueOf& value_of, const SlotMask (&live)[kQueries],
                                              const float* weight, const float* keep, float* const* weighted,
                                              int offset, std::ptrdiff_t ahead = 0) {
  __m256 sum[kQueries][2];
  for (int i = 0; i < kQueries; ++i)
    for (int v = 0; v < 2; ++v)
      sum[i][v] = _mm256_mul_ps(_mm256_loadu_ps(weighted[i] + offset + v * 8), _mm256_set1_ps(keep[i]));
  SlotMask any = 0;
  SlotMask all = ~SlotMask{0};
  for (int i = 0; i < kQueries; ++i) {
    any |= live[i];
    all &= live[i];
  }
  for (; any != 0; any &= any - 1) {
    const int s = __builtin_ctzll(any);
    const std::byte* at = value_of(s) + static_cast<std::size_t>(offset) * kElementBytes<kType>;
    if constexpr (kFetch) __builtin_prefetch(at + ahead, 0, 2);
    const __m256 low = load8<kType>(at);
    const __m256 high = load8<kType>(at + 8 * kElementBytes<kType>);
    const bool seen_by_all = (all >> s & 1) != 0;
    for (int i = 0; i < kQueries; ++i) {
      if (!seen_by_all && (live[i] >> s & 1) == 0) continue;
      const __m256 w = _mm256_broadcast_ss(weight + i * 64 + s);
      sum[i][0] = _mm256_fmadd_ps(w, low, sum[i][0]);
      sum[i][1] = _mm256_fmadd_ps(w, high, sum[i][1]);
    }
  }
  for (int i = 0; i < kQueries; ++i)
    for (int v = 0; v < 2; ++v) _mm256_storeu_ps(weighted[i] + offset + v * 8, sum[i][v]);
}

// Whether element `first` of a row begins a cache line, if rows are aligned to lines.
template <KvType kType>
constexpr bool begins_line(int first) {
  return static_cast<std::size_t>(first) * kElementBytes<kType> % 64 == 0;
}

// Scores of a block with all slots of a page, [kQueries][64]. Unless `ahead` is 0, also fetches as many bytes from
// `ahead` bytes beyond the keys on.
template <KvType kType, int kQueries>
[[gnu::always_inline]] inline void page_scores(const std::byte* keys, int slots, int dim, const float* q, float* score,
                                               std::ptrdiff_t ahead = 0) {
  for (int slot = 0; slot < slots; slot += 16) {
    __m256 of_slots[kQueries][2];
    const std::byte* at = keys + static_cast<std::size_t>(slot) * kElementBytes<kType>;
    const std::size_t row_bytes = static_cast<std::size_t>(slots) * kElementBytes<kType>;
    if (ahead != 0 && begins_line<kType>(slot)) {
      slot_scores<kType, kQueries, true>(at, row_bytes, dim, q, of_slots, ahead);
    } else {
      slot_scores<kType, kQueries, false>(at, row_bytes, dim, q, of_slots, ahead);
    }
    for (int i = 0; i < kQueries; ++i)
      for (int v = 0; v < 2; ++v) _mm256_store_ps(score + i * 64 + slot + v * 8, of_slots[i][v]);
  }
}

// Takes an entry's scores, [kQueries][64], into maxima and sums. weight, likewise: exp(score - maximum), zero where not
// live, and undefined of a query that sees nothing; keep: what earlier sums are multiplied with.
template <int kQueries>
[[gnu::always_inline]] inline void weigh(const AttentionPartial& partial, const AttentionState& state, int first,
                                         const QueryBlock<kQueries>& block, int e, const SlotMask (&live)[kQueries],
                                         const float* score, float* weight, float* keep) {
  const int slots = partial.slots;
  for (int i = 0; i < kQueries; ++i) {
    float* w = weight + i * 64;
    const float* s = score + i * 64;
    if (live[i] == 0) {
      keep[i] = 1.0F;
      continue;
    }
    const auto lanes = [&](int slot) { return _mm256_castsi256_ps(lanes_of(live[i] >> slot & 0xff)); };
    const float before = state.maximum[first + i];
    __m256 highest[2] = {_mm256_set1_ps(before), _mm256_set1_ps(before)};
    for (int slot = 0; slot < slots; slot += 8) {
      __m256& of_lanes = highest[slot / 8 % 2];
      of_lanes = _mm256_blendv_ps(of_lanes, _mm256_max_ps(of_lanes, _mm256_load_ps(s + slot)), lanes(slot));
    }
    const float maximum = max16(highest[0], highest[1]);
    __m256 total[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int slot = 0; slot < slots; slot += 8) {
      const __m256 p =
          _mm256_and_ps(lanes(slot), exp8(_mm256_sub_ps(_mm256_load_ps(s + slot), _mm256_set1_ps(maximum))));
      _mm256_store_ps(w + slot, p);
      if (block.observed[i] != nullptr) _mm256_storeu_ps(block.observed[i] + e * slots + slot, p);
      total[slot / 8 % 2] = _mm256_add_ps(total[slot / 8 % 2], p);
    }
    if (block.observed[i] != nullptr)
      partial.weight_maxima[static_cast<std::size_t>(first + i) * partial.weight_maximum_stride +
                            static_cast<std::size_t>(e)] = maximum;
    keep[i] = maximum == before ? 1.0F : exp1(before - maximum);
    state.maximum[first + i] = maximum;
    state.sum[first + i] = __builtin_fmaf(state.sum[first + i], keep[i], sum16(total[0], total[1]));
  }
}

// Adds the values of an entry, [slots][head_dim], to the weighted sums of a block. `ahead`: as of page_scores.
template <KvType kType, int kQueries>
[[gnu::always_inline]] inline void add_all_values(const std::byte* values, int dim, const SlotMask (&live)[kQueries],
                                                  const float* weight, const float* keep, float* const* weighted,
                                                  std::ptrdiff_t ahead = 0) {
  const std::size_t bytes = static_cast<std::size_t>(dim) * kElementBytes<kType>;
  const auto value_of = [&](int s) { return values + static_cast<std::size_t>(s) * bytes; };
  for (int offset = 0; offset < dim; offset += 16)
    if (ahead != 0 && begins_line<kType>(offset)) {
      add_values<kType, kQueries, true>(value_of, live, weight, keep, weighted, offset, ahead);
    } else {
      add_values<kType, kQueries>(value_of, live, weight, keep, weighted, offset);
    }
}

// Calls block<kQueries>(first) for blocks of queries that cover all.
template <class Block>
[[gnu::always_inline]] inline void query_blocks(int queries, const Block& block) {
  int first = 0;
  for (; first + 4 <= queries; first += 4) block.template operator()<4>(first);
  for (; first + 2 <= queries; first += 2) block.template operator()<2>(first);
  for (; first < queries; ++first) block.template operator()<1>(first);
}

}  // namespace
}  // namespace kvasir::avx2
