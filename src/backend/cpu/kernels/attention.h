// Attention over pages that are not encoded, and what follows it. Written once, over vectors of 16 lanes
// (avx512/simd.h); compiled for each instruction set by the file that includes it.
#pragma once

#include "backend/cpu/kernels/attention_parts.h"
#include "backend/cpu/kernels/generic.h"
#include "backend/cpu/kernels/pages/latent_page.h"

namespace kvasir {
namespace {

// attend_encoded and attend_words are of the same instruction set: the one takes entries that are encoded, the other
// those in i16.
template <class Simd, void attend_encoded(const AttentionPartial&, const AttentionState&),
          void attend_words(const AttentionPartial&, const AttentionState&)>
struct Attention {
  using Floats = typename Simd::Floats;
  using Parts = AttentionParts<Simd>;

  static void set(KernelTable& table) {
    table.attend = attend;
    table.attend_gathered = attend_gathered;
    table.open_latent = open_latent<Simd>;
    table.merge = merge;
    table.observe_weights = observe_weights;
    table.score_segments = score_segments;
  }

  static void attend(const AttentionPartial& partial, const AttentionState& state) {
    if (partial.head_dim % 16 != 0) return generic_kernels().attend(partial, state);
    attend_runs(partial, [&](const AttentionPartial& part) {
      const PageFormat& format = **part.formats;
      if (format.encoded()) return attend_encoded(part, state);
      if (format.key == KvType::kI16) return attend_words(part, state);
      if (format.key != format.value) return generic_kernels().attend(part, state);
      with_element_type(format.key, [&]<KvType kType>() { attend_type<kType>(part, state); });
    });
  }

 private:
  // kFetch: few queries wait for memory; while they attend to an entry, the next one's page is fetched.
  template <KvType kType, int kSlotVectors, int kQueries, bool kFetch>
  static void attend_block(const AttentionPartial& partial, const AttentionState& state, int first) {
    const int dim = partial.head_dim;
    alignas(64) float q[kMaxHeadDim * kQueries];
    alignas(64) float weight[kQueries * 64];
    float keep[kQueries];
    const QueryBlock<kQueries> block(partial, state, first);
    Parts::transpose(block.q, dim, q);
    for (int e = 0; e < partial.entries; ++e) {
      SlotMask live[kQueries];
      if (!block.live(e, live)) continue;
      const std::byte* page = partial.pages[e];
      const std::ptrdiff_t ahead = page_ahead(partial, e) - page;
      Floats score[kQueries][kSlotVectors];
      Parts::template page_scores<kType, kSlotVectors, kQueries, kFetch>(page, dim, q, score, ahead);
      Parts::template cap_and_bias<kSlotVectors>(partial, e, score);
      Parts::template weigh<kSlotVectors>(
          partial, state, first, block, e, live, [&](int i, int v) { return score[i][v]; }, weight, keep);
      const std::byte* values = page + static_cast<std::size_t>(dim * kSlotVectors * 16) * kElementBytes<kType>;
      Parts::template add_all_values<kType, kQueries, kFetch>(values, dim, live, weight, keep, block.weighted, ahead);
    }
  }

  // Many queries share the work of opening a page to floats. Takes queries [0, count), whole blocks.
  template <KvType kType, int kSlotVectors, int kQueries>
  static void attend_opened(const AttentionPartial& partial, const AttentionState& state, int count) {
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
        Parts::transpose(QueryBlock<kQueries>(partial, state, first).q, dim, q + (first - tile) * dim);
      for (int e = 0; e < partial.entries; ++e) {
        bool opened = false;
        for (int first = tile; first < end; first += kQueries) {
          const QueryBlock<kQueries> block(partial, state, first);
          SlotMask live[kQueries];
          if (!block.live(e, live)) continue;
          if (!opened)
            for (int i = 0; i < 2 * side; i += 16)
              Simd::store(page + i, Simd::template load_elements<kType>(partial.pages[e] + static_cast<std::size_t>(i) *
                                                                                               kElementBytes<kType>));
          // Keys as floats take as many bytes as a page of 16 bits: while the first block reads them, the next page is
          // fetched.
          const auto* keys = reinterpret_cast<const std::byte*>(page);
          const float* queries = q + (first - tile) * dim;
          Floats score[kQueries][kSlotVectors];
          if (!opened) {
            Parts::template page_scores<KvType::kF32, kSlotVectors, kQueries, true>(keys, dim, queries, score,
                                                                                    page_ahead(partial, e) - keys);
          } else {
            Parts::template page_scores<KvType::kF32, kSlotVectors, kQueries>(keys, dim, queries, score);
          }
          opened = true;
          Parts::template cap_and_bias<kSlotVectors>(partial, e, score);
          Parts::template weigh<kSlotVectors>(
              partial, state, first, block, e, live, [&](int i, int v) { return score[i][v]; }, weight, keep);
          Parts::template add_all_values<KvType::kF32, kQueries>(reinterpret_cast<const std::byte*>(page + side), dim,
                                                                 live, weight, keep, block.weighted);
        }
      }
    }
  }

  template <KvType kType>
  static void attend_type(const AttentionPartial& partial, const AttentionState& state) {
    Parts::with_slot_vectors(partial.slots, [&]<int kSlotVectors>() {
      constexpr int kBlock = Parts::template kMostQueries<kSlotVectors>;
      const int queries = partial.rows * partial.group;
      int opened = 0;
      if constexpr (Simd::kOpensPages && kType != KvType::kF32)
        if (queries >= 2 * kBlock) {
          opened = queries / kBlock * kBlock;
          attend_opened<kType, kSlotVectors, kBlock>(partial, state, opened);
        }
      Parts::template query_blocks<kSlotVectors>(
          queries,
          [&]<int kQueries>(int first) {
            if (first == 0) return attend_block<kType, kSlotVectors, kQueries, true>(partial, state, first);
            attend_block<kType, kSlotVectors, kQueries, false>(partial, state, first);
          },
          opened);
    });
  }

  static void attend_gathered(const AttentionPartial& partial, const GatheredEntry* entries,
                              const AttentionState& state) {
    generic::attend_placed(partial, entries, state, attend);
  }

  static void merge(const AttentionState& into, const AttentionState& from, int queries, int head_dim) {
    for (int query = 0; query < queries; ++query) {
      if (from.sum[query] == 0) continue;
      const float a = into.maximum[query];
      const float b = from.maximum[query];
      const float highest = a > b ? a : b;
      const float keep = Simd::exp(a - highest);
      const float take = Simd::exp(b - highest);
      float* to = into.weighted + static_cast<std::size_t>(query) * static_cast<std::size_t>(head_dim);
      const float* more = from.weighted + static_cast<std::size_t>(query) * static_cast<std::size_t>(head_dim);
      for (int d = 0; d < head_dim; ++d) to[d] = to[d] * keep + more[d] * take;
      into.sum[query] = into.sum[query] * keep + from.sum[query] * take;
      into.maximum[query] = highest;
    }
  }

  static int observe_weights(const ObservedQuery& query) {
    if (query.slots % 16 != 0) return generic_kernels().observe_weights(query);
    const float inverse = 1.0F / query.sum;
    const float* raw = query.weights;
    int count = 0;
    for (int e = 0; e < query.entries; ++e, raw += query.slots) {
      const SlotMask live = query.masks[e];
      if (live == 0) continue;
      const Floats scale = Simd::all(Simd::exp(query.weight_maxima[e] - query.maximum) * inverse);
      for (int slot = 0; slot < query.slots; slot += 16) {
        const auto bits = static_cast<std::uint16_t>(live >> slot);
        if (bits == 0) continue;
        const Floats weights = Simd::load(raw + slot) * scale;
        // pack may write 16 floats: those behind the live ones were read already, or are written next.
        if (bits == 0xffff) {
          Simd::store(query.weights + count, weights);
        } else {
          Simd::pack(bits, query.weights + count, weights);
        }
        count += __builtin_popcount(bits);
      }
    }
    return count;
  }

  // Scores segments for kQueries queries at once, which share the loads of the bounds.
  template <int kQueries>
  static void score_segments_of(const float* bounds, const float* queries, int head_dim, float* best) {
    static_assert(kScoredSegments == 16);
    Floats sum[kQueries];
    for (Floats& s : sum) s = Simd::zero();
    for (int d = 0; d < head_dim; ++d, bounds += 2 * kScoredSegments)
      for (int g = 0; g < kQueries; ++g) {
        const float q = queries[g * head_dim + d];
        const float* side = bounds + (q >= 0 ? kScoredSegments : 0);
        sum[g] += Simd::all(q) * Simd::load(side);
      }
    Floats most = Simd::load(best);
    for (const Floats& s : sum) most = Simd::where(Simd::less_or_nan(most, s), s, most);
    Simd::store(best, most);
  }

  static void score_segments(const float* bounds, const float* queries, int group, int head_dim, float* best) {
    Simd::store(best, Simd::all(-__builtin_inff()));
    for (; group >= 4; group -= 4, queries += 4 * head_dim) score_segments_of<4>(bounds, queries, head_dim, best);
    for (; group > 0; --group, queries += head_dim) score_segments_of<1>(bounds, queries, head_dim, best);
  }
};

}  // namespace
}  // namespace kvasir
