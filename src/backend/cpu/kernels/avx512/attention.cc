#include "backend/cpu/kernels/attend_runs.h"
#include "backend/cpu/kernels/avx512/simd.h"

namespace kvasir::avx512 {
namespace {

// Scores of up to kQueries queries with all slots of a page. `q` is [head_dim][kQueries]; each score sums over the
// dimensions in order.
template <KvType kType, int kVectors, int kQueries>
[[gnu::always_inline]] inline void page_scores(const std::byte* keys, int head_dim, const float* q,
                                               __m512 (&score)[kQueries][kVectors]) {
  constexpr std::size_t kSize = kType == KvType::kF32 ? 4 : 2;
  for (int i = 0; i < kQueries; ++i)
    for (int v = 0; v < kVectors; ++v) score[i][v] = _mm512_setzero_ps();
  for (int d = 0; d < head_dim; ++d, keys += kVectors * 16 * kSize, q += kQueries) {
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
template <KvType kType, int kVectors, int kQueries>
[[gnu::always_inline]] inline void add_values(const std::byte* values, std::size_t value_bytes,
                                              const SlotMask (&live)[kQueries], const float* weight, const float* keep,
                                              float* const* weighted, int offset) {
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

template <KvType kType, int kSlotVectors, int kQueries>
void attend_block(const AttentionPartial& partial, const AttentionState& state, int first) {
  constexpr std::size_t kSize = kType == KvType::kF32 ? 4 : 2;
  const int dim = partial.head_dim;
  alignas(64) float q[kMaxHeadDim * kQueries];
  alignas(64) float weight[kQueries * 64];
  float keep[kQueries];
  float* weighted[kQueries];
  const SlotMask* masks[kQueries];
  float* observed[kQueries];
  for (int i = 0; i < kQueries; ++i) {
    const int row = (first + i) / partial.group;
    const float* from = partial.q + static_cast<std::size_t>(row) * partial.q_row_stride +
                        static_cast<std::size_t>((first + i) % partial.group * dim);
    for (int d = 0; d < dim; ++d) q[d * kQueries + i] = from[d];
    weighted[i] = state.weighted + static_cast<std::size_t>(first + i) * static_cast<std::size_t>(dim);
    observed[i] = partial.weights != nullptr
                      ? partial.weights + static_cast<std::size_t>(first + i) * partial.weight_stride
                      : nullptr;
    masks[i] = partial.masks + static_cast<std::size_t>(row) * partial.mask_row_stride;
  }
  for (int e = 0; e < partial.entries; ++e) {
    SlotMask live[kQueries];
    SlotMask any = 0;
    for (int i = 0; i < kQueries; ++i) any |= live[i] = masks[i][e];
    if (any == 0) continue;
    const std::byte* page = partial.pages[e];
    __m512 score[kQueries][kSlotVectors];
    page_scores<kType, kSlotVectors, kQueries>(page, dim, q, score);
    for (int i = 0; i < kQueries; ++i) {
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
        if (observed[i] != nullptr) _mm512_storeu_ps(observed[i] + (e * kSlotVectors + v) * 16, p);
        total = _mm512_add_ps(total, p);
      }
      if (observed[i] != nullptr)
        partial.weight_maxima[static_cast<std::size_t>(first + i) * partial.weight_maximum_stride +
                              static_cast<std::size_t>(e)] = maximum;
      keep[i] = maximum == before ? 1.0F : exp1(before - maximum);
      state.maximum[first + i] = maximum;
      state.sum[first + i] = __builtin_fmaf(state.sum[first + i], keep[i], sum16(total));
    }
    const std::byte* values = page + static_cast<std::size_t>(dim * kSlotVectors * 16) * kSize;
    const std::size_t value_bytes = static_cast<std::size_t>(dim) * kSize;
    int offset = 0;
    if constexpr (kQueries <= 4)
      for (; offset + 64 <= dim; offset += 64)
        add_values<kType, 4, kQueries>(values, value_bytes, live, weight, keep, weighted, offset);
    for (; offset + 32 <= dim; offset += 32)
      add_values<kType, 2, kQueries>(values, value_bytes, live, weight, keep, weighted, offset);
    for (; offset + 16 <= dim; offset += 16)
      add_values<kType, 1, kQueries>(values, value_bytes, live, weight, keep, weighted, offset);
  }
}

template <KvType kType, int kSlotVectors>
void attend_as(const AttentionPartial& partial, const AttentionState& state) {
  const int queries = partial.rows * partial.group;
  int first = 0;
  if constexpr (kSlotVectors <= 2)
    for (; first + 8 <= queries; first += 8) attend_block<kType, kSlotVectors, 8>(partial, state, first);
  for (; first + 4 <= queries; first += 4) attend_block<kType, kSlotVectors, 4>(partial, state, first);
  for (; first + 2 <= queries; first += 2) attend_block<kType, kSlotVectors, 2>(partial, state, first);
  for (; first < queries; ++first) attend_block<kType, kSlotVectors, 1>(partial, state, first);
}

template <KvType kType>
void attend_type(const AttentionPartial& partial, const AttentionState& state) {
  switch (partial.slots) {
    case 16: return attend_as<kType, 1>(partial, state);
    case 32: return attend_as<kType, 2>(partial, state);
    default: return attend_as<kType, 4>(partial, state);
  }
}

}  // namespace

void attend(const AttentionPartial& partial, const AttentionState& state) {
  if (partial.head_dim % 16 != 0) return generic_kernels().attend(partial, state);
  attend_runs(partial, [&](const AttentionPartial& part) {
    const PageFormat& format = **part.formats;
    if (format.key != format.value) return generic_kernels().attend(part, state);
    switch (format.key) {
      case KvType::kF16: return attend_type<KvType::kF16>(part, state);
      case KvType::kBF16: return attend_type<KvType::kBF16>(part, state);
      default: return attend_type<KvType::kF32>(part, state);
    }
  });
}

void merge(const AttentionState& into, const AttentionState& from, int queries, int head_dim) {
  for (int query = 0; query < queries; ++query) {
    if (from.sum[query] == 0) continue;
    const float a = into.maximum[query];
    const float b = from.maximum[query];
    const float highest = a > b ? a : b;
    const float keep = exp1(a - highest);
    const float take = exp1(b - highest);
    const auto at = static_cast<std::size_t>(query) * static_cast<std::size_t>(head_dim);
    for (int d = 0; d < head_dim; ++d)
      into.weighted[at + static_cast<std::size_t>(d)] = into.weighted[at + static_cast<std::size_t>(d)] * keep +
                                                        from.weighted[at + static_cast<std::size_t>(d)] * take;
    into.sum[query] = into.sum[query] * keep + from.sum[query] * take;
    into.maximum[query] = highest;
  }
}

int observe_weights(const ObservedQuery& query) {
  if (query.slots % 16 != 0) return generic_kernels().observe_weights(query);
  const float inverse = 1.0F / query.sum;
  const float* raw = query.weights;
  int count = 0;
  for (int e = 0; e < query.entries; ++e, raw += query.slots) {
    const SlotMask live = query.masks[e];
    if (live == 0) continue;
    const __m512 scale = _mm512_set1_ps(exp1(query.weight_maxima[e] - query.maximum) * inverse);
    for (int slot = 0; slot < query.slots; slot += 16) {
      const auto mask = static_cast<__mmask16>(live >> slot & 0xffff);
      if (mask == 0) continue;
      // Written whole: what lies behind the live ones was read already, or is written next.
      const __m512 w = _mm512_mul_ps(_mm512_loadu_ps(raw + slot), scale);
      _mm512_storeu_ps(query.weights + count, _mm512_maskz_compress_ps(mask, w));
      count += __builtin_popcount(mask);
    }
  }
  return count;
}

}  // namespace kvasir::avx512
