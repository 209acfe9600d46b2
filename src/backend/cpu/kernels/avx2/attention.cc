#include "backend/cpu/kernels/attention.h"

#include "backend/cpu/kernels/avx2/simd.h"

namespace kvasir::avx2 {
namespace {

using Parts = AttentionParts<Vectors>;
using PagedAttention = Attention<Vectors, attend_encoded, attend_words>;

// Scores of a block with the tokens of a gathered entry, [kQueries][64]; other slots stay as they are. Each sums
// over the dimensions in order, as page_scores does.
template <KvType kType, int kQueries>
[[gnu::always_inline]] inline void gathered_scores(const GatheredEntry& entry, int dim, const float* q, float* score) {
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

// A block of queries over gathered entries: their rows are read where they are.
template <KvType kType, int kSlotVectors, int kQueries>
void attend_gathered_block(const AttentionPartial& partial, const GatheredEntry* entries, const AttentionState& state,
                           int first) {
  const int dim = partial.head_dim;
  alignas(32) float q[kMaxHeadDim * kQueries];
  alignas(32) float weight[kQueries * 64];
  alignas(32) float score[kQueries * 64] = {};
  float keep[kQueries];
  const QueryBlock<kQueries> block(partial, state, first);
  Parts::transpose(block.q, dim, q);
  for (int e = 0; e < partial.entries; ++e) {
    SlotMask live[kQueries];
    if (!block.live(e, live)) continue;
    gathered_scores<kType, kQueries>(entries[e], dim, q, score);
    Parts::weigh_stored<kSlotVectors>(partial, state, first, block, e, live, score, weight, keep);
    const std::byte* values[64];
    const std::byte* const* row = entries[e].rows;
    for (SlotMask left = entries[e].slots; left != 0; left &= left - 1)
      values[__builtin_ctzll(left)] = *row++ + static_cast<std::size_t>(dim) * kElementBytes<kType>;
    Parts::add_values_of<kType>([&](int s) { return values[s]; }, dim, live, weight, keep, block.weighted);
  }
}

template <KvType kType>
void attend_gathered_type(const AttentionPartial& partial, const GatheredEntry* entries, const AttentionState& state) {
  Parts::with_slot_vectors(partial.slots, [&]<int kSlotVectors>() {
    Parts::query_blocks<kSlotVectors>(partial.rows * partial.group, [&]<int kQueries>(int first) {
      attend_gathered_block<kType, kSlotVectors, kQueries>(partial, entries, state, first);
    });
  });
}

void attend_gathered(const AttentionPartial& partial, const GatheredEntry* entries, const AttentionState& state) {
  if (partial.head_dim % 16 != 0) return generic::attend_placed(partial, entries, state, PagedAttention::attend);
  attend_runs(partial, [&](const AttentionPartial& part) {
    const PageFormat& format = **part.formats;
    const GatheredEntry* of_part = entries + (part.formats - partial.formats);
    if (format.key != format.value) return generic::attend_placed(part, of_part, state, PagedAttention::attend);
    with_element_type(format.key, [&]<KvType kType>() { attend_gathered_type<kType>(part, of_part, state); });
  });
}

}  // namespace

void set_attention(KernelTable& table) {
  PagedAttention::set(table);
  table.attend_gathered = attend_gathered;
}

}  // namespace kvasir::avx2
