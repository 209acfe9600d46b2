// Parts of attention that entries of all formats share. Internal to the translation unit that includes it.
#pragma once

#include "backend/cpu/kernels/attend_runs.h"
#include "backend/cpu/kernels/avx512/simd.h"
#include "backend/cpu/kernels/prefetch.h"

namespace kvasir::avx512 {
namespace {

// Fetches kBytes (a multiple of 32) from p on.
template <std::size_t kBytes>
[[gnu::always_inline]] inline void fetch(const std::byte* p) {
  for (std::size_t at = 0; at < kBytes; at += 64) prefetch(p + at);
}

// Scores of up to kQueries queries with all slots of a page. `q` is [head_dim][kQueries]; each score sums over the
// dimensions in order. kFetch: also fetches as many bytes, from
// `ahead` bytes beyond the keys on.
template <KvType kType, int kVectors, int kQueries, bool kFetch = false>
[[gnu::always_inline]] inline void page_scores(const std::byte* keys, int head_dim, const float* q,
                                               __m512 (&score)[kQueries][kVectors], std::ptrdiff_t ahead = 0) {
  constexpr std::size_t kSize = kType == KvType::kF32 ? 4 : 2;
  for (int i = 0; i < kQueries; ++i)
    for (int v = 0; v < kVectors; ++v) score[i][v] = _mm512_setzero_ps();
  for (int d = 0; d < head_dim; ++d, keys += kVectors * 16 * kSize, q += kQueries) {
    if constexpr (kFetch) fetch<kVectors * 16 * kSize>(keys + ahead);
    __m512 k[kVectors];
    for (int v = 0; v < kVectors; ++v) k[v] = load16<kType>(keys + static_cast<std::size_t>(v) * 16 * kSize);
    for (int i = 0; i < kQueries; ++i) {
      const __m512 a = _mm512_set1_ps(q[i]);
      for (int v = 0; v < kVectors; ++v) score[i][v] = _mm512_fmadd_ps(a, k[v], score[i][v]);
    }
  }
}

// weighted[i][0 .. 16 * kVectors) = weighted * keep[i] + sum over live slots of weight[i][s] * value[s], slots in
// order. A slot that only some of the queries see is not even added as zero to the others: zero times infinity, and
// zero added to -0, would tell that somebody beside them saw it.
template <KvType kType, int kVectors, int kQueries, bool kFetch = false>
[[gnu::always_inline]] inline void add_values(const std::byte* values, std::size_t value_bytes,
                                              const SlotMask (&live)[kQueries], const float* weight, const float* keep,
                                              float* const* weighted, int offset, std::ptrdiff_t ahead = 0) {
  constexpr std::size_t kSize = kType == KvType::kF32 ? 4 : 2;
  __m512 sum[kQueries][kVectors];
  for (int i = 0; i < kQueries; ++i)
    for (int v = 0; v < kVectors; ++v)
      sum[i][v] = _mm512_mul_ps(_mm512_loadu_ps(weighted[i] + offset + v * 16), _mm512_set1_ps(keep[i]));
  SlotMask any = 0;
  SlotMask all = ~SlotMask{0};
  for (int i = 0; i < kQueries; ++i) {
    any |= live[i];
    all &= live[i];
  }
  for (; any != 0; any &= any - 1) {
    const int s = __builtin_ctzll(any);
    const std::byte* at = values + static_cast<std::size_t>(s) * value_bytes + static_cast<std::size_t>(offset) * kSize;
    if constexpr (kFetch) fetch<kVectors * 16 * kSize>(at + ahead);
    __m512 x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = load16<kType>(at + static_cast<std::size_t>(v) * 16 * kSize);
    if (all >> s & 1) {
      for (int i = 0; i < kQueries; ++i) {
        const __m512 w = _mm512_set1_ps(weight[i * 64 + s]);
        for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm512_fmadd_ps(w, x[v], sum[i][v]);
      }
    } else {
      for (int i = 0; i < kQueries; ++i) {
        if ((live[i] >> s & 1) == 0) continue;
        const __m512 w = _mm512_set1_ps(weight[i * 64 + s]);
        for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm512_fmadd_ps(w, x[v], sum[i][v]);
      }
    }
  }
  for (int i = 0; i < kQueries; ++i)
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(weighted[i] + offset + v * 16, sum[i][v]);
}

// The greatest lane of each of four vectors, in the first lane of each quarter. Which lanes a NaN hides depends on the
// order: it is that of GCC's _mm512_reduce_max_ps.
[[gnu::always_inline]] inline __m512 max_four(const __m512* x) {
  const __m512 ab = _mm512_max_ps(_mm512_shuffle_f32x4(x[0], x[1], 0xee), _mm512_shuffle_f32x4(x[0], x[1], 0x44));
  const __m512 cd = _mm512_max_ps(_mm512_shuffle_f32x4(x[2], x[3], 0xee), _mm512_shuffle_f32x4(x[2], x[3], 0x44));
  const __m512 all = _mm512_max_ps(_mm512_shuffle_f32x4(ab, cd, 0xdd), _mm512_shuffle_f32x4(ab, cd, 0x88));
  const __m512 two = _mm512_max_ps(all, _mm512_permute_ps(all, 0x4e));
  return _mm512_max_ps(two, _mm512_permute_ps(two, 0xb1));
}

// The sums of four vectors, likewise, in the order of sum16.
[[gnu::always_inline]] inline __m512 sum_four(const __m512* x) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(x[0], x[1], 0x44), _mm512_shuffle_f32x4(x[0], x[1], 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(x[2], x[3], 0x44), _mm512_shuffle_f32x4(x[2], x[3], 0xee));
  const __m512 all = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  const __m512 two = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4e));
  return _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
}

// The first lane of each quarter.
[[gnu::always_inline]] inline __m512i quarters(__m512i x) {
  return _mm512_maskz_compress_epi32(0x1111, x);
}
[[gnu::always_inline]] inline __m128 quarters(__m512 x) {
  return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, x));
}

// What weigh does for queries [from, from + 4) of a block, all of which see something.
template <int kSlotVectors, int kQueries>
[[gnu::always_inline]] inline void weigh_four(const AttentionPartial& partial, const AttentionState& state, int first,
                                              const QueryBlock<kQueries>& block, int e,
                                              const SlotMask (&live)[kQueries],
                                              const __m512 (&score)[kQueries][kSlotVectors], int from, float* weight,
                                              float* keep) {
  const auto mask = [&](int i, int v) { return static_cast<__mmask16>(live[from + i] >> (v * 16)); };
  const __m128 before = _mm_loadu_ps(state.maximum + first + from);
  __m512 highest[4], total[4];
  for (int i = 0; i < 4; ++i) {
    highest[i] = _mm512_set1_ps(state.maximum[first + from + i]);
    for (int v = 0; v < kSlotVectors; ++v)
      highest[i] = _mm512_mask_max_ps(highest[i], mask(i, v), highest[i], score[from + i][v]);
  }
  const __m512 most = max_four(highest);
  const __m128 maximum = quarters(most);
  _mm_storeu_ps(state.maximum + first + from, maximum);
  for (int i = 0; i < 4; ++i) {
    const __m512 of_query = _mm512_permutexvar_ps(_mm512_set1_epi32(4 * i), most);
    total[i] = _mm512_setzero_ps();
    for (int v = 0; v < kSlotVectors; ++v) {
      const __m512 p = _mm512_maskz_mov_ps(mask(i, v), exp16(_mm512_sub_ps(score[from + i][v], of_query)));
      _mm512_store_ps(weight + (from + i) * 64 + v * 16, p);
      if (block.observed[from + i] != nullptr)
        _mm512_storeu_ps(block.observed[from + i] + (e * kSlotVectors + v) * 16, p);
      total[i] = _mm512_add_ps(total[i], p);
    }
    if (block.observed[from + i] != nullptr)
      partial.weight_maxima[static_cast<std::size_t>(first + from + i) * partial.weight_maximum_stride +
                            static_cast<std::size_t>(e)] = _mm512_cvtss_f32(of_query);
  }
  __m128 kept = _mm_set1_ps(1.0F);
  const __m128 same = _mm_cmpeq_ps(maximum, before);
  if (_mm_movemask_ps(same) != 0xf)
    kept =
        _mm_blendv_ps(_mm512_castps512_ps128(exp16(_mm512_castps128_ps512(_mm_sub_ps(before, maximum)))), kept, same);
  _mm_storeu_ps(keep + from, kept);
  float* sum = state.sum + first + from;
  _mm_storeu_ps(sum, _mm_fmadd_ps(_mm_loadu_ps(sum), kept, quarters(sum_four(total))));
}

// Takes an entry's scores into maxima and sums. weight [kQueries][64]: exp(score - maximum), zero where not live, and
// undefined of a query that sees nothing; keep: what earlier sums are multiplied with.
template <int kSlotVectors, int kQueries>
[[gnu::always_inline]] inline void weigh(const AttentionPartial& partial, const AttentionState& state, int first,
                                         const QueryBlock<kQueries>& block, int e, const SlotMask (&live)[kQueries],
                                         const __m512 (&score)[kQueries][kSlotVectors], float* weight, float* keep) {
  for (int i = 0; i < kQueries; ++i) {
    if constexpr (kQueries >= 4)
      if (i % 4 == 0 && live[i] != 0 && live[i + 1] != 0 && live[i + 2] != 0 && live[i + 3] != 0) {
        weigh_four<kSlotVectors, kQueries>(partial, state, first, block, e, live, score, i, weight, keep);
        i += 3;
        continue;
      }
    float* w = weight + i * 64;
    if (live[i] == 0) {
      keep[i] = 1.0F;
      continue;
    }
    const float before = state.maximum[first + i];
    __m512 highest = _mm512_set1_ps(before);
    for (int v = 0; v < kSlotVectors; ++v)
      highest = _mm512_mask_max_ps(highest, static_cast<__mmask16>(live[i] >> (v * 16)), highest, score[i][v]);
    const float maximum = _mm512_reduce_max_ps(highest);
    __m512 total = _mm512_setzero_ps();
    for (int v = 0; v < kSlotVectors; ++v) {
      const __m512 p = _mm512_maskz_mov_ps(static_cast<__mmask16>(live[i] >> (v * 16)),
                                           exp16(_mm512_sub_ps(score[i][v], _mm512_set1_ps(maximum))));
      _mm512_store_ps(w + v * 16, p);
      if (block.observed[i] != nullptr) _mm512_storeu_ps(block.observed[i] + (e * kSlotVectors + v) * 16, p);
      total = _mm512_add_ps(total, p);
    }
    if (block.observed[i] != nullptr)
      partial.weight_maxima[static_cast<std::size_t>(first + i) * partial.weight_maximum_stride +
                            static_cast<std::size_t>(e)] = maximum;
    keep[i] = maximum == before ? 1.0F : exp1(before - maximum);
    state.maximum[first + i] = maximum;
    state.sum[first + i] = __builtin_fmaf(state.sum[first + i], keep[i], sum16(total));
  }
}

// Adds the values of an entry, [slots][head_dim], to the weighted sums of a block. kFetch: as of page_scores.
template <KvType kType, int kQueries, bool kFetch = false>
[[gnu::always_inline]] inline void add_all_values(const std::byte* values, int dim, const SlotMask (&live)[kQueries],
                                                  const float* weight, const float* keep, float* const* weighted,
                                                  std::ptrdiff_t ahead = 0) {
  const std::size_t value_bytes = static_cast<std::size_t>(dim) * (kType == KvType::kF32 ? 4 : 2);
  int offset = 0;
  if constexpr (kQueries <= 4)
    for (; offset + 64 <= dim; offset += 64)
      add_values<kType, 4, kQueries, kFetch>(values, value_bytes, live, weight, keep, weighted, offset, ahead);
  for (; offset + 32 <= dim; offset += 32)
    add_values<kType, 2, kQueries, kFetch>(values, value_bytes, live, weight, keep, weighted, offset, ahead);
  for (; offset + 16 <= dim; offset += 16)
    add_values<kType, 1, kQueries, kFetch>(values, value_bytes, live, weight, keep, weighted, offset, ahead);
}

// Calls block<kSlotVectors, kQueries>(first) for blocks of queries that cover all from `first` on.
template <int kSlotVectors, class Block>
[[gnu::always_inline]] inline void query_blocks(int queries, const Block& block, int first = 0) {
  if constexpr (kSlotVectors <= 2)
    for (; first + 8 <= queries; first += 8) block.template operator()<kSlotVectors, 8>(first);
  for (; first + 4 <= queries; first += 4) block.template operator()<kSlotVectors, 4>(first);
  for (; first + 2 <= queries; first += 2) block.template operator()<kSlotVectors, 2>(first);
  for (; first < queries; ++first) block.template operator()<kSlotVectors, 1>(first);
}

}  // namespace
}  // namespace kvasir::avx512
