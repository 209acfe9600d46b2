#include "backend/cpu/kernels/avx512/attention_parts.h"
#include "backend/cpu/kernels/generic.h"

namespace kvasir::avx512 {
namespace {

template <KvType kType>
constexpr std::size_t kElementBytes = kType == KvType::kF32 ? 4 : 2;

// q: [head_dim][kQueries] of a block.
template <int kQueries>
[[gnu::always_inline]] inline void transpose_queries(const QueryBlock<kQueries>& block, int dim, float* q) {
  for (int i = 0; i < kQueries; ++i)
    for (int d = 0; d < dim; ++d) q[d * kQueries + i] = block.q[i][d];
}

// Few queries wait for memory: while they attend to an entry, the next one's page is fetched.
template <KvType kType, int kSlotVectors, int kQueries>
void attend_block(const AttentionPartial& partial, const AttentionState& state, int first) {
  constexpr bool kFetch = kQueries <= 4;
  const int dim = partial.head_dim;
  alignas(64) float q[kMaxHeadDim * kQueries];
  alignas(64) float weight[kQueries * 64];
  float keep[kQueries];
  const QueryBlock<kQueries> block(partial, state, first);
  transpose_queries(block, dim, q);
  for (int e = 0; e < partial.entries; ++e) {
    SlotMask live[kQueries];
    if (!block.live(e, live)) continue;
    const std::byte* page = partial.pages[e];
    const std::ptrdiff_t ahead = page_ahead(partial, e) - page;
    __m512 score[kQueries][kSlotVectors];
    page_scores<kType, kSlotVectors, kQueries, kFetch>(page, dim, q, score, ahead);
    weigh<kSlotVectors, kQueries>(partial, state, first, block, e, live, score, weight, keep);
    const std::byte* values = page + static_cast<std::size_t>(dim * kSlotVectors * 16) * kElementBytes<kType>;
    add_all_values<kType, kQueries, kFetch>(values, dim, live, weight, keep, block.weighted, ahead);
  }
}

// Many queries share the work of opening a page to floats. Takes queries [0, count), whole blocks.
template <KvType kType, int kSlotVectors, int kQueries>
void attend_opened(const AttentionPartial& partial, const AttentionState& state, int count) {
  constexpr int kTile = 32;
  const int dim = partial.head_dim;
  const int side = dim * kSlotVectors * 16;
  alignas(64) float q[kMaxHeadDim * kTile];
  alignas(64) float page[2 * kMaxHeadDim * kSlotVectors * 16];
  alignas(64) float weight[kQueries * 64];
  float keep[kQueries];
  for (int tile = 0; tile < count; tile += kTile) {
    const int end = count - tile < kTile ? count : tile + kTile;
    for (int first = tile; first < end; first += kQueries)
      transpose_queries(QueryBlock<kQueries>(partial, state, first), dim, q + (first - tile) * dim);
    for (int e = 0; e < partial.entries; ++e) {
      bool opened = false;
      for (int first = tile; first < end; first += kQueries) {
        const QueryBlock<kQueries> block(partial, state, first);
        SlotMask live[kQueries];
        if (!block.live(e, live)) continue;
        if (!opened)
          for (int i = 0; i < 2 * side; i += 16)
            _mm512_store_ps(page + i,
                            load16<kType>(partial.pages[e] + static_cast<std::size_t>(i) * kElementBytes<kType>));
        // Keys as floats take as many bytes as a page of 16 bits: while the first block reads them, the next page is
        // fetched.
        const auto* keys = reinterpret_cast<const std::byte*>(page);
        const float* queries = q + (first - tile) * dim;
        __m512 score[kQueries][kSlotVectors];
        if (!opened) {
          page_scores<KvType::kF32, kSlotVectors, kQueries, true>(keys, dim, queries, score,
                                                                  page_ahead(partial, e) - keys);
        } else {
          page_scores<KvType::kF32, kSlotVectors, kQueries>(keys, dim, queries, score);
        }
        opened = true;
        weigh<kSlotVectors, kQueries>(partial, state, first, block, e, live, score, weight, keep);
        add_all_values<KvType::kF32, kQueries>(reinterpret_cast<const std::byte*>(page + side), dim, live, weight, keep,
                                               block.weighted);
      }
    }
  }
}

template <KvType kType, int kSlotVectors>
void attend_as(const AttentionPartial& partial, const AttentionState& state) {
  constexpr int kBlock = kSlotVectors <= 2 ? 8 : 4;
  const int queries = partial.rows * partial.group;
  int first = 0;
  if constexpr (kType != KvType::kF32)
    if (queries >= 2 * kBlock) {
      first = queries / kBlock * kBlock;
      attend_opened<kType, kSlotVectors, kBlock>(partial, state, first);
    }
  query_blocks<kSlotVectors>(
      queries, [&]<int kVectors, int kQueries>(int of) { attend_block<kType, kVectors, kQueries>(partial, state, of); },
      first);
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
  generic::attend_placed(partial, apart, state, attend);
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

namespace {

// Of kQueries queries at once, which share the loads of the bounds.
template <int kQueries>
void score_chunks_of(const float* bounds, const float* queries, int head_dim, float* best) {
  __m512 sum[kQueries];
  for (__m512& s : sum) s = _mm512_setzero_ps();
  for (int d = 0; d < head_dim; ++d, bounds += 2 * kScoredChunks)
    for (int g = 0; g < kQueries; ++g) {
      const float q = queries[g * head_dim + d];
      const float* side = bounds + (q >= 0 ? kScoredChunks : 0);
      sum[g] = _mm512_add_ps(sum[g], _mm512_mul_ps(_mm512_set1_ps(q), _mm512_loadu_ps(side)));
    }
  __m512 most = _mm512_loadu_ps(best);
  for (const __m512& s : sum) {
    const __mmask16 above = _mm512_cmp_ps_mask(s, most, _CMP_GT_OQ) | _mm512_cmp_ps_mask(s, s, _CMP_UNORD_Q);
    most = _mm512_mask_mov_ps(most, above, s);
  }
  _mm512_storeu_ps(best, most);
}

}  // namespace

void score_chunks(const float* bounds, const float* queries, int group, int head_dim, float* best) {
  _mm512_storeu_ps(best, _mm512_set1_ps(-__builtin_inff()));
  for (; group >= 4; group -= 4, queries += 4 * head_dim) score_chunks_of<4>(bounds, queries, head_dim, best);
  for (; group > 0; --group, queries += head_dim) score_chunks_of<1>(bounds, queries, head_dim, best);
}

}  // namespace kvasir::avx512
