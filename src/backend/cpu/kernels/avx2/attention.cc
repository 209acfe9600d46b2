#include "backend/cpu/kernels/avx2/attention_parts.h"

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
    page_scores<kType, kQueries>(page, slots, dim, q, score);
    weigh<kQueries>(partial, state, first, block, e, live, score, weight, keep);
    const std::byte* values = page + static_cast<std::size_t>(slots * dim) * kElementBytes<kType>;
    add_all_values<kType, kQueries>(values, dim, live, weight, keep, block.weighted);
  }
}

template <KvType kType>
void attend_type(const AttentionPartial& partial, const AttentionState& state) {
  query_blocks(partial.rows * partial.group,
               [&]<int kQueries>(int first) { attend_block<kType, kQueries>(partial, state, first); });
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
