#include "backend/cpu/kernels/avx2/attention_parts.h"
#include "backend/cpu/kernels/generic.h"

namespace kvasir::avx2 {
namespace {

template <KvType kType, int kQueries>
void attend_block(const AttentionPartial& partial, const AttentionState& state, int first) {
  const int dim = partial.head_dim;
  const int slots = partial.slots;
  alignas(32) float q[kMaxHeadDim * kQueries];
  alignas(32) float weight[kQueries * 64];
  alignas(32) float score[kQueries * 64];
  float keep[kQueries];
  const QueryBlock<kQueries> block(partial, state, first);
  for (int i = 0; i < kQueries; ++i)
    for (int d = 0; d < dim; ++d) q[d * kQueries + i] = block.q[i][d];
  for (int e = 0; e < partial.entries; ++e) {
    SlotMask live[kQueries];
    if (!block.live(e, live)) continue;
    const std::byte* page = partial.pages[e];
    // The first block of queries fetches the next entry's page for all.
    const std::ptrdiff_t ahead = first == 0 ? page_ahead(partial, e) - page : 0;
    page_scores<kType, kQueries>(page, slots, dim, q, score, ahead);
    weigh<kQueries>(partial, state, first, block, e, live, score, weight, keep);
    const std::byte* values = page + static_cast<std::size_t>(slots * dim) * kElementBytes<kType>;
    add_all_values<kType, kQueries>(values, dim, live, weight, keep, block.weighted, ahead);
  }
}

template <KvType kType>
void attend_type(const AttentionPartial& partial, const AttentionState& state) {
  query_blocks(partial.rows * partial.group,
               [&]<int kQueries>(int first) { attend_block<kType, kQueries>(partial, state, first); });
}

// Turns eight vectors of eight lanes into those of their first lanes, of their second, and so on.
[[gnu::always_inline]] inline void transpose8(__m256 (&x)[8]) {
  __m256 pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
    }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    x[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

// Scores of a block with the tokens of an entry that lie apart, [kQueries][64]; other slots stay as they are. Each sums
// over the dimensions in order, as page_scores does.
template <KvType kType, int kQueries>
[[gnu::always_inline]] inline void apart_scores(const ApartEntry& entry, int dim, const float* q, float* score) {
  const int tokens = __builtin_popcountll(entry.slots);
  SlotMask left = entry.slots;
  for (int begin = 0; begin < tokens; begin += 8) {
    const std::byte* rows[8];
    for (int r = 0; r < 8; ++r) rows[r] = entry.rows[begin + r < tokens ? begin + r : tokens - 1];
    __m256 sum[kQueries];
    for (int i = 0; i < kQueries; ++i) sum[i] = _mm256_setzero_ps();
    for (int d = 0; d < dim; d += 8) {
      __m256 keys[8];
      for (int r = 0; r < 8; ++r) keys[r] = load8<kType>(rows[r] + static_cast<std::size_t>(d) * kElementBytes<kType>);
      transpose8(keys);
      for (int j = 0; j < 8; ++j)
        for (int i = 0; i < kQueries; ++i)
          sum[i] = _mm256_fmadd_ps(_mm256_broadcast_ss(q + (d + j) * kQueries + i), keys[j], sum[i]);
    }
    alignas(32) float of_rows[kQueries][8];
    for (int i = 0; i < kQueries; ++i) _mm256_store_ps(of_rows[i], sum[i]);
    for (int r = 0; r < 8 && left != 0; ++r, left &= left - 1)
      for (int i = 0; i < kQueries; ++i) score[i * 64 + __builtin_ctzll(left)] = of_rows[i][r];
  }
}

// As attend_block, of entries that lie apart.
template <KvType kType, int kQueries>
void attend_apart_block(const AttentionPartial& partial, const ApartEntry* apart, const AttentionState& state,
                        int first) {
  const int dim = partial.head_dim;
  alignas(32) float q[kMaxHeadDim * kQueries];
  alignas(32) float weight[kQueries * 64];
  alignas(32) float score[kQueries * 64] = {};
  float keep[kQueries];
  const QueryBlock<kQueries> block(partial, state, first);
  for (int i = 0; i < kQueries; ++i)
    for (int d = 0; d < dim; ++d) q[d * kQueries + i] = block.q[i][d];
  for (int e = 0; e < partial.entries; ++e) {
    SlotMask live[kQueries];
    if (!block.live(e, live)) continue;
    apart_scores<kType, kQueries>(apart[e], dim, q, score);
    weigh<kQueries>(partial, state, first, block, e, live, score, weight, keep);
    const std::byte* values[64];
    const std::byte* const* row = apart[e].rows;
    for (SlotMask left = apart[e].slots; left != 0; left &= left - 1)
      values[__builtin_ctzll(left)] = *row++ + static_cast<std::size_t>(dim) * kElementBytes<kType>;
    for (int offset = 0; offset < dim; offset += 16)
      add_values<kType, kQueries>([&](int s) { return values[s]; }, live, weight, keep, block.weighted, offset);
  }
}

template <KvType kType>
void attend_apart_type(const AttentionPartial& partial, const ApartEntry* apart, const AttentionState& state) {
  query_blocks(partial.rows * partial.group,
               [&]<int kQueries>(int first) { attend_apart_block<kType, kQueries>(partial, apart, state, first); });
}

}  // namespace

void attend(const AttentionPartial& partial, const AttentionState& state) {
  if (partial.head_dim % 16 != 0) return generic_kernels().attend(partial, state);
  attend_runs(partial, [&](const AttentionPartial& part) {
    const PageFormat& format = **part.formats;
    if (format.encoded()) return attend_encoded(part, state);
    if (format.key != format.value) return generic_kernels().attend(part, state);
    switch (format.key) {
      case KvType::kF16: return attend_type<KvType::kF16>(part, state);
      case KvType::kBF16: return attend_type<KvType::kBF16>(part, state);
      default: return attend_type<KvType::kF32>(part, state);
    }
  });
}

void attend_apart(const AttentionPartial& partial, const ApartEntry* apart, const AttentionState& state) {
  if (partial.head_dim % 16 != 0) return generic::attend_placed(partial, apart, state, attend);
  attend_runs(partial, [&](const AttentionPartial& part) {
    const PageFormat& format = **part.formats;
    const ApartEntry* of_part = apart + (part.formats - partial.formats);
    if (format.key != format.value) return generic::attend_placed(part, of_part, state, attend);
    switch (format.key) {
      case KvType::kF16: return attend_apart_type<KvType::kF16>(part, of_part, state);
      case KvType::kBF16: return attend_apart_type<KvType::kBF16>(part, of_part, state);
      default: return attend_apart_type<KvType::kF32>(part, of_part, state);
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

namespace {

// Of kQueries queries at once, which share the loads of the bounds.
template <int kQueries>
void score_chunks_of(const float* bounds, const float* queries, int head_dim, float* best) {
  __m256 sum[kQueries][2];
  for (auto& s : sum) s[0] = s[1] = _mm256_setzero_ps();
  for (int d = 0; d < head_dim; ++d, bounds += 2 * kScoredChunks)
    for (int g = 0; g < kQueries; ++g) {
      const float q = queries[g * head_dim + d];
      const float* side = bounds + (q >= 0 ? kScoredChunks : 0);
      for (int v = 0; v < 2; ++v)
        sum[g][v] = _mm256_add_ps(sum[g][v], _mm256_mul_ps(_mm256_set1_ps(q), _mm256_loadu_ps(side + v * 8)));
    }
  for (int v = 0; v < 2; ++v) {
    __m256 most = _mm256_loadu_ps(best + v * 8);
    for (const auto& s : sum) {
      const __m256 above = _mm256_or_ps(_mm256_cmp_ps(s[v], most, _CMP_GT_OQ), _mm256_cmp_ps(s[v], s[v], _CMP_UNORD_Q));
      most = _mm256_blendv_ps(most, s[v], above);
    }
    _mm256_storeu_ps(best + v * 8, most);
  }
}

}  // namespace

void score_chunks(const float* bounds, const float* queries, int group, int head_dim, float* best) {
  for (int v = 0; v < 2; ++v) _mm256_storeu_ps(best + v * 8, _mm256_set1_ps(-__builtin_inff()));
  for (; group >= 4; group -= 4, queries += 4 * head_dim) score_chunks_of<4>(bounds, queries, head_dim, best);
  for (; group > 0; --group, queries += head_dim) score_chunks_of<1>(bounds, queries, head_dim, best);
}

}  // namespace kvasir::avx2
