#include "backend/cpu/kernels/attend_runs.h"
#include "backend/cpu/kernels/avx2/simd.h"

namespace kvasir::avx2 {
namespace {

// Scores of kQueries queries with 16 slots of a page, whose keys have `row_bytes` for each dimension. `q` is
// [head_dim][kQueries]; each score sums over the dimensions in order.
template <KvType kType, int kQueries>
[[gnu::always_inline]] inline void slot_scores(const std::byte* keys, std::size_t row_bytes, int head_dim,
                                               const float* q, __m256 (&score)[kQueries][2]) {
  for (int i = 0; i < kQueries; ++i) score[i][0] = score[i][1] = _mm256_setzero_ps();
  for (int d = 0; d < head_dim; ++d, keys += row_bytes, q += kQueries) {
    const __m256 low = load8<kType>(keys);
    const __m256 high = load8<kType>(keys + 8 * kElementBytes<kType>);
    for (int i = 0; i < kQueries; ++i) {
      const __m256 a = _mm256_broadcast_ss(q + i);
      score[i][0] = _mm256_fmadd_ps(a, low, score[i][0]);
      score[i][1] = _mm256_fmadd_ps(a, high, score[i][1]);
    }
  }
}

// weighted[i][0 .. 16) = weighted * keep[i] + sum over live slots of weight[i][s] * value[s], slots in order. A slot
// that only some of the queries see is not even added as zero to the others: zero times infinity, and zero added to -0,
// would tell that somebody beside them saw it.
template <KvType kType, int kQueries>
[[gnu::always_inline]] inline void add_values(const std::byte* values, std::size_t value_bytes,
                                              const SlotMask (&live)[kQueries], const float* weight, const float* keep,
                                              float* const* weighted, int offset) {
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
    const std::byte* at =
        values + static_cast<std::size_t>(s) * value_bytes + static_cast<std::size_t>(offset) * kElementBytes<kType>;
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

template <KvType kType, int kQueries>
void attend_block(const AttentionPartial& partial, const AttentionState& state, int first) {
  const int dim = partial.head_dim;
  const int slots = partial.slots;
  alignas(32) float q[kMaxHeadDim * kQueries];
  alignas(32) float weight[kQueries * 64];
  alignas(32) float score[kQueries * 64];
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
  const std::size_t row_bytes = static_cast<std::size_t>(slots) * kElementBytes<kType>;
  for (int e = 0; e < partial.entries; ++e) {
    SlotMask live[kQueries];
    SlotMask any = 0;
    for (int i = 0; i < kQueries; ++i) any |= live[i] = masks[i][e];
    if (any == 0) continue;
    const std::byte* page = partial.pages[e];
    for (int slot = 0; slot < slots; slot += 16) {
      __m256 of_slots[kQueries][2];
      slot_scores<kType, kQueries>(page + static_cast<std::size_t>(slot) * kElementBytes<kType>, row_bytes, dim, q,
                                   of_slots);
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < 2; ++v) _mm256_store_ps(score + i * 64 + slot + v * 8, of_slots[i][v]);
    }
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
        if (observed[i] != nullptr) _mm256_storeu_ps(observed[i] + e * slots + slot, p);
        total[slot / 8 % 2] = _mm256_add_ps(total[slot / 8 % 2], p);
      }
      if (observed[i] != nullptr)
        partial.weight_maxima[static_cast<std::size_t>(first + i) * partial.weight_maximum_stride +
                              static_cast<std::size_t>(e)] = maximum;
      keep[i] = maximum == before ? 1.0F : exp1(before - maximum);
      state.maximum[first + i] = maximum;
      state.sum[first + i] = __builtin_fmaf(state.sum[first + i], keep[i], sum16(total[0], total[1]));
    }
    const std::byte* values = page + row_bytes * static_cast<std::size_t>(dim);
    for (int offset = 0; offset < dim; offset += 16)
      add_values<kType, kQueries>(values, static_cast<std::size_t>(dim) * kElementBytes<kType>, live, weight, keep,
                                  weighted, offset);
  }
}

template <KvType kType>
void attend_type(const AttentionPartial& partial, const AttentionState& state) {
  const int queries = partial.rows * partial.group;
  int first = 0;
  for (; first + 4 <= queries; first += 4) attend_block<kType, 4>(partial, state, first);
  for (; first + 2 <= queries; first += 2) attend_block<kType, 2>(partial, state, first);
  for (; first < queries; ++first) attend_block<kType, 1>(partial, state, first);
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
    const __m256 scale = _mm256_set1_ps(exp1(query.weight_maxima[e] - query.maximum) * inverse);
    for (int slot = 0; slot < query.slots; slot += 8) {
      const auto mask = static_cast<unsigned>(live >> slot & 0xff);
      if (mask == 0) continue;
      // Written whole: what lies behind the live ones was read already, or is written next.
      const __m256 w = _mm256_mul_ps(_mm256_loadu_ps(raw + slot), scale);
      _mm256_storeu_ps(query.weights + count, mask == 0xff ? w : compress8(mask, w));
      count += __builtin_popcount(mask);
    }
  }
  return count;
}

}  // namespace kvasir::avx2
