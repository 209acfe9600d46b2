// Parts of attention that entries of all formats share. Written once, over vectors of 16 lanes (avx512/simd.h);
// compiled for each instruction set by the file that includes it.
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels/attend_runs.h"
#include "backend/cpu/kernels/pages/page_layout.h"
#include "backend/cpu/kernels/prefetch.h"
#include "backend/cpu/kernels/unrolled.h"

namespace kvasir {
namespace {

template <class Simd>
struct AttentionParts {
  using Floats = typename Simd::Floats;
  using Ints = typename Simd::Ints;

  // What an integer of a set of numbers stands for, and its inverse.
  struct Unit {
    float unit;
    float inverse;

    // most: the bits of magnitudes. `greatest`: the integer that the largest becomes.
    [[gnu::always_inline]] Unit(Ints most, float greatest) {
      const Ints all[4] = {most, Simd::no_ints(), Simd::no_ints(), Simd::no_ints()};
      alignas(16) float units[4], inverses[4];
      Simd::units_four(all, units, inverses, greatest);
      unit = units[0];
      inverse = inverses[0];
    }
  };

  // Rounds n numbers, a multiple of 16, to integers of at most `greatest`. Returns their unit. out: 32-byte aligned.
  static float to_integers(const float* x, int n, float greatest, std::int16_t* out) {
    Ints most = Simd::no_ints();
    for (int i = 0; i < n; i += 16) most = Simd::most_bits(most, Simd::magnitude(Simd::load(x + i)));
    const Unit of(most, greatest);
    for (int i = 0; i < n; i += 16) Simd::store_integers(out + i, Simd::load(x + i) * Simd::all(of.inverse));
    return of.unit;
  }

  // Returns how many of the `wanted` vectors of each query are summed at once.
  static constexpr int at_once(int wanted, int queries) {
    return wanted * queries <= Simd::kSums ? wanted : Simd::kSums / queries;
  }

  // Fetches the lines that begin in the kBytes bytes from p on, which is `at` bytes behind the beginning of a line.
  template <std::size_t kBytes>
  [[gnu::always_inline]] static void fetch(const std::byte* p, std::size_t at) {
    if (kBytes < 64 && at % 64 != 0) return;
    for (std::size_t i = 0; i < kBytes; i += 64) prefetch(p + i);
  }

  // Scores of kQueries queries with all slots of a page. `q` is [head_dim][kQueries]; each score sums over the
  // dimensions in order. kFetch: also fetches as many bytes, from `ahead` bytes beyond the keys on.
  template <KvType kType, int kSlotVectors, int kQueries, bool kFetch = false>
  [[gnu::always_inline]] static void page_scores(const std::byte* keys, int head_dim, const float* q,
                                                 Floats (&score)[kQueries][kSlotVectors], std::ptrdiff_t ahead = 0) {
    constexpr std::size_t kSize = kElementBytes<kType>;
    constexpr int kVectors = at_once(kSlotVectors, kQueries);
    unrolled<kSlotVectors / kVectors>([&](auto number) __attribute__((always_inline)) {
      constexpr int kFirst = decltype(number)::value * kVectors;
      constexpr std::size_t kBegin = kFirst * 16 * kSize;
      const std::byte* row = keys + kBegin;
      const float* of_row = q;
      Floats sum[kQueries][kVectors];
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < kVectors; ++v) sum[i][v] = Simd::zero();
      for (int d = 0; d < head_dim; ++d, row += kSlotVectors * 16 * kSize, of_row += kQueries) {
        if constexpr (kFetch) fetch<kVectors * 16 * kSize>(row + ahead, kBegin);
        Floats k[kVectors];
        for (int v = 0; v < kVectors; ++v)
          k[v] = Simd::template load_elements<kType>(row + static_cast<std::size_t>(v) * 16 * kSize);
        for (int i = 0; i < kQueries; ++i) {
          const Floats a = Simd::all(of_row[i]);
          for (int v = 0; v < kVectors; ++v) sum[i][v] = Simd::fma(a, k[v], sum[i][v]);
        }
      }
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < kVectors; ++v) score[i][kFirst + v] = sum[i][v];
    });
  }

  // weighted[i][0 .. 16 * kVectors) = weighted * keep[i] + sum over live slots of weight[i][s] * value[s], slots in
  // order, where value_of(s) is a slot's value. A slot is not added to queries that do not see it, even as zero: zero
  // times infinity, or zero added to -0, would make their sums depend on other queries.
  template <KvType kType, int kVectors, int kQueries, bool kFetch = false, class ValueOf>
  [[gnu::always_inline]] static void add_values(const ValueOf& value_of, const SlotMask (&live)[kQueries],
                                                const float* weight, const float* keep, float* const* weighted,
                                                int offset, std::ptrdiff_t ahead = 0) {
    constexpr std::size_t kSize = kElementBytes<kType>;
    const std::size_t begin = static_cast<std::size_t>(offset) * kSize;
    Floats sum[kQueries][kVectors];
    for (int i = 0; i < kQueries; ++i)
      for (int v = 0; v < kVectors; ++v) sum[i][v] = Simd::load(weighted[i] + offset + v * 16) * Simd::all(keep[i]);
    SlotMask any = 0;
    SlotMask all = ~SlotMask{0};
    for (int i = 0; i < kQueries; ++i) {
      any |= live[i];
      all &= live[i];
    }
    for (; any != 0; any &= any - 1) {
      const int s = __builtin_ctzll(any);
      const std::byte* at = value_of(s) + begin;
      if constexpr (kFetch) fetch<kVectors * 16 * kSize>(at + ahead, begin);
      Floats x[kVectors];
      for (int v = 0; v < kVectors; ++v)
        x[v] = Simd::template load_elements<kType>(at + static_cast<std::size_t>(v) * 16 * kSize);
      const auto add = [&](int i) __attribute__((always_inline)) {
        const Floats w = Simd::all(weight[i * 64 + s]);
        for (int v = 0; v < kVectors; ++v) sum[i][v] = Simd::fma(w, x[v], sum[i][v]);
      };
      if (all >> s & 1) {
        for (int i = 0; i < kQueries; ++i) add(i);
      } else {
        for (int i = 0; i < kQueries; ++i)
          if ((live[i] >> s & 1) != 0) add(i);
      }
    }
    for (int i = 0; i < kQueries; ++i)
      for (int v = 0; v < kVectors; ++v) Simd::store(weighted[i] + offset + v * 16, sum[i][v]);
  }

  // Adds the values of an entry to the weighted sums of a block. kFetch: as of page_scores.
  template <KvType kType, int kQueries, bool kFetch = false, class ValueOf>
  [[gnu::always_inline]] static void add_values_of(const ValueOf& value_of, int dim, const SlotMask (&live)[kQueries],
                                                   const float* weight, const float* keep, float* const* weighted,
                                                   std::ptrdiff_t ahead = 0) {
    constexpr int kMost = at_once(4, kQueries);
    int offset = 0;
    if constexpr (kMost >= 4)
      for (; offset + 64 <= dim; offset += 64)
        add_values<kType, 4, kQueries, kFetch>(value_of, live, weight, keep, weighted, offset, ahead);
    if constexpr (kMost >= 2)
      for (; offset + 32 <= dim; offset += 32)
        add_values<kType, 2, kQueries, kFetch>(value_of, live, weight, keep, weighted, offset, ahead);
    for (; offset + 16 <= dim; offset += 16)
      add_values<kType, 1, kQueries, kFetch>(value_of, live, weight, keep, weighted, offset, ahead);
  }

  // The same for values [slots][head_dim].
  template <KvType kType, int kQueries, bool kFetch = false>
  [[gnu::always_inline]] static void add_all_values(const std::byte* values, int dim, const SlotMask (&live)[kQueries],
                                                    const float* weight, const float* keep, float* const* weighted,
                                                    std::ptrdiff_t ahead = 0) {
    const std::size_t bytes = static_cast<std::size_t>(dim) * kElementBytes<kType>;
    add_values_of<kType, kQueries, kFetch>([&](int s) { return values + static_cast<std::size_t>(s) * bytes; }, dim,
                                           live, weight, keep, weighted, ahead);
  }

  // As weigh, for queries [from, from + 4) of a block. REQUIRES: each sees a token of the entry.
  template <int kSlotVectors, int kQueries, class ScoreOf>
  [[gnu::always_inline]] static void weigh_four(const AttentionPartial& partial, const AttentionState& state, int first,
                                                const QueryBlock<kQueries>& block, int e,
                                                const SlotMask (&live)[kQueries], const ScoreOf& score_of, int from,
                                                float* weight, float* keep) {
    const auto mask = [&](int i, int v) { return Simd::mask(static_cast<std::uint16_t>(live[from + i] >> (v * 16))); };
    const __m128 before = _mm_loadu_ps(state.maximum + first + from);
    Floats highest[4], total[4];
    for (int i = 0; i < 4; ++i) {
      highest[i] = Simd::all(state.maximum[first + from + i]);
      for (int v = 0; v < kSlotVectors; ++v) highest[i] = Simd::max(mask(i, v), highest[i], score_of(from + i, v));
    }
    const Floats most = Simd::max_four(highest);
    const __m128 maximum = Simd::first_of_quarters(most);
    _mm_storeu_ps(state.maximum + first + from, maximum);
    unrolled<4>([&](auto number) __attribute__((always_inline)) {
      constexpr int i = decltype(number)::value;
      const Floats of_query = Simd::all_of_quarter(most, i);
      total[i] = Simd::zero();
      for (int v = 0; v < kSlotVectors; ++v) {
        const Floats p = Simd::where(mask(i, v), Simd::exp(score_of(from + i, v) - of_query));
        Simd::store(weight + (from + i) * 64 + v * 16, p);
        if (block.observed[from + i] != nullptr) Simd::store(block.observed[from + i] + (e * kSlotVectors + v) * 16, p);
        total[i] += p;
      }
      if (block.observed[from + i] != nullptr)
        partial.weight_maxima[static_cast<std::size_t>(first + from + i) * partial.weight_maximum_stride +
                              static_cast<std::size_t>(e)] = state.maximum[first + from + i];
    });
    __m128 kept = _mm_set1_ps(1.0F);
    const __m128 same = _mm_cmpeq_ps(maximum, before);
    if (_mm_movemask_ps(same) != 0xf) kept = _mm_blendv_ps(Simd::exp_four(_mm_sub_ps(before, maximum)), kept, same);
    _mm_storeu_ps(keep + from, kept);
    float* sum = state.sum + first + from;
    _mm_storeu_ps(sum, _mm_fmadd_ps(_mm_loadu_ps(sum), kept, Simd::first_of_quarters(Simd::sum_four(total))));
  }

  // softcap * tanh(score / softcap), where tanh(x) = 2 / (1 + exp(-2 x)) - 1.
  [[gnu::always_inline]] static Floats capped(float softcap, Floats score) {
    const Floats grown = Simd::exp(score * Simd::all(-2.0F / softcap));
    return Simd::all(softcap) * (Simd::all(2.0F) / (Simd::all(1.0F) + grown) - Simd::all(1.0F));
  }

  // Returns the biases of an entry's slots; null: it has none.
  [[gnu::always_inline]] static const float* biases_of(const AttentionPartial& partial, int entry) {
    return partial.biases != nullptr ? partial.biases[entry] : nullptr;
  }

  // Caps the scores of a block with an entry, and adds the entry's biases, where there are any.
  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void cap_and_bias(const AttentionPartial& partial, int entry,
                                                  Floats (&score)[kQueries][kSlotVectors]) {
    if (partial.softcap != 0)
      for (auto& of_query : score)
        for (Floats& scores : of_query) scores = capped(partial.softcap, scores);
    if (const float* biases = biases_of(partial, entry))
      for (auto& of_query : score)
        for (int v = 0; v < kSlotVectors; ++v) of_query[v] += Simd::load(biases + v * 16);
  }

  // Updates maxima and sums with an entry's scores: score_of(i, v) has those of query i with 16 slots. Sets weight
  // [kQueries][64] to exp(score - maximum), zero where not live and undefined for a query that sees nothing, and keep
  // [kQueries] to the factors for earlier sums.
  template <int kSlotVectors, int kQueries, class ScoreOf>
  [[gnu::always_inline]] static void weigh(const AttentionPartial& partial, const AttentionState& state, int first,
                                           const QueryBlock<kQueries>& block, int e, const SlotMask (&live)[kQueries],
                                           const ScoreOf& score_of, float* weight, float* keep) {
    for (int i = 0; i < kQueries; ++i) {
      if constexpr (kQueries >= 4)
        if (i % 4 == 0 && live[i] != 0 && live[i + 1] != 0 && live[i + 2] != 0 && live[i + 3] != 0) {
          weigh_four<kSlotVectors>(partial, state, first, block, e, live, score_of, i, weight, keep);
          i += 3;
          continue;
        }
      if (live[i] == 0) {
        keep[i] = 1.0F;
        continue;
      }
      const auto mask = [&](int v) { return Simd::mask(static_cast<std::uint16_t>(live[i] >> (v * 16))); };
      const float before = state.maximum[first + i];
      Floats highest = Simd::all(before);
      for (int v = 0; v < kSlotVectors; ++v) highest = Simd::max(mask(v), highest, score_of(i, v));
      const float maximum = Simd::greatest(highest);
      Floats total = Simd::zero();
      for (int v = 0; v < kSlotVectors; ++v) {
        const Floats p = Simd::where(mask(v), Simd::exp(score_of(i, v) - Simd::all(maximum)));
        Simd::store(weight + i * 64 + v * 16, p);
        if (block.observed[i] != nullptr) Simd::store(block.observed[i] + (e * kSlotVectors + v) * 16, p);
        total += p;
      }
      if (block.observed[i] != nullptr)
        partial.weight_maxima[static_cast<std::size_t>(first + i) * partial.weight_maximum_stride +
                              static_cast<std::size_t>(e)] = maximum;
      keep[i] = maximum == before ? 1.0F : Simd::exp(before - maximum);
      state.maximum[first + i] = maximum;
      state.sum[first + i] = __builtin_fmaf(state.sum[first + i], keep[i], Simd::sum(total));
    }
  }

  // The same for scores in memory, [kQueries][64], which are capped and biased first. They are read once if registers
  // can hold them.
  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void weigh_stored(const AttentionPartial& partial, const AttentionState& state,
                                                  int first, const QueryBlock<kQueries>& block, int e,
                                                  const SlotMask (&live)[kQueries], float* score, float* weight,
                                                  float* keep) {
    if (partial.softcap != 0)
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < kSlotVectors; ++v) {
          float* const at = score + i * 64 + v * 16;
          Simd::store(at, capped(partial.softcap, Simd::load(at)));
        }
    if (const float* biases = biases_of(partial, e))
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < kSlotVectors; ++v) {
          float* const at = score + i * 64 + v * 16;
          Simd::store(at, Simd::load(at) + Simd::load(biases + v * 16));
        }
    const auto stored = [&](int i, int v) __attribute__((always_inline)) {
      return Simd::load(score + i * 64 + v * 16);
    };
    if constexpr (kQueries * kSlotVectors <= Simd::kSums) {
      Floats held[kQueries][kSlotVectors];
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < kSlotVectors; ++v) held[i][v] = stored(i, v);
      weigh<kSlotVectors>(
          partial, state, first, block, e, live, [&](int i, int v) { return held[i][v]; }, weight, keep);
    } else {
      weigh<kSlotVectors>(partial, state, first, block, e, live, stored, weight, keep);
    }
  }

  // Writes queries as q [head_dim][kQueries].
  template <int kQueries>
  [[gnu::always_inline]] static void transpose(const float* const (&of)[kQueries], int dim, float* q) {
    for (int i = 0; i < kQueries; ++i)
      for (int d = 0; d < dim; ++d) q[d * kQueries + i] = of[i][d];
  }

  // The most queries of a block.
  template <int kSlotVectors>
  static constexpr int kMostQueries = 8 * kSlotVectors <= Simd::kSums ? 8 : 4;

  // Calls block<kQueries>(first) for blocks of queries that cover all from `first` on.
  template <int kSlotVectors, class Block>
  [[gnu::always_inline]] static void query_blocks(int queries, const Block& block, int first = 0) {
    if constexpr (kMostQueries<kSlotVectors> == 8)
      for (; first + 8 <= queries; first += 8) block.template operator()<8>(first);
    for (; first + 4 <= queries; first += 4) block.template operator()<4>(first);
    for (; first + 2 <= queries; first += 2) block.template operator()<2>(first);
    for (; first < queries; ++first) block.template operator()<1>(first);
  }

  // Calls run.operator()<kSlotVectors>().
  template <class Run>
  [[gnu::always_inline]] static void with_slot_vectors(int slots, const Run& run) {
    switch (slots) {
      case 16: return run.template operator()<1>();
      case 32: return run.template operator()<2>();
      default: return run.template operator()<4>();
    }
  }
};

}  // namespace
}  // namespace kvasir
