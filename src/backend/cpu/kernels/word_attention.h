// Attention over pages of i16, as integer_products.h defines it: codes are multiplied in pairs of rows where they lie.
// Written once, over vectors of 16 lanes (avx512/simd.h); compiled for each instruction set by the file that includes
// it.
#pragma once

#include <algorithm>

#include "backend/cpu/kernels/attention_parts.h"
#include "backend/cpu/kernels/integer_products.h"

namespace kvasir {
namespace {

template <class Simd>
struct WordAttention {
  using Floats = typename Simd::Floats;
  using Ints = typename Simd::Ints;
  using Parts = AttentionParts<Simd>;

  static constexpr int kTile = 32;                        // queries that read a step's pages one after the other
  static constexpr int kStepVectors = kStepSlots / 16;    // of the scores of a query
  static constexpr int kWeighed = 4;                      // queries weighed together
  static constexpr int kQueryStride = kMaxValueDim + 32;  // a line more than a power of two, so that all fit the cache
  static constexpr float kLog2e = 1.44269504F;

  // Returns 2^x for x <= 0, to about 3e-6: x = n + r, |r| <= 1/2, and the polynomial of r that has the least relative
  // error and is 1 at 0. Below -125 as for that. Adding 1.5 * 2^23 leaves n in the low bits. The NaN that arithmetic
  // makes stays NaN.
  [[gnu::always_inline]] static Floats power_of_two(Floats x) {
    const Floats low_bits = Simd::all(12582912.0F);
    x = Simd::max(Simd::all(-125.0F), x);
    const Floats whole = x + low_bits;
    const Floats r = x - (whole - low_bits);
    Floats p = Simd::all(0.009582852944731712F);
    p = Simd::fma(p, r, Simd::all(0.055906426161527634F));
    p = Simd::fma(p, r, Simd::all(0.24024099111557007F));
    p = Simd::fma(p, r, Simd::all(0.6931241750717163F));
    p = Simd::fma(p, r, Simd::all(1.0F));
    return Simd::add_to_exponent(p, whole);
  }

  // A tile of queries, and what is known of them in a step.
  struct Tile {
    int count = 0;
    alignas(64) std::int16_t q[kTile][kQueryStride];  // [count][head_dim]
    alignas(16) float unit[kTile];                    // of q
    const SlotMask* masks[kTile];                     // [entries] of the partial
    float* observed[kTile];  // [entries][slots] of the partial; nullptr: weights are not wanted
    // Products of a query's integers with a key's, times the key's scale; times `unit`, a score.
    alignas(64) float score[kTile][kStepSlots];
    alignas(64) std::int16_t weight[kTile][kStepSlots];
    // With room for kWeighed from the last query on.
    float weight_unit[kTile + kWeighed - 1];
    float keep[kTile + kWeighed - 1];
    bool sees[kTile];  // whether the query sees a token of the step

    Tile() {}  // leaves the arrays as they are
  };

  // Entries of a partial whose weights share a unit.
  struct Step {
    int first = 0;  // entry of the partial
    int count = 0;
    int seen_count = 0;                     // entries that a query of the tile sees
    int seen[kStepVectors];                 // their numbers in the step
    const std::byte* values[kStepVectors];  // of those
    const float* value_scales[kStepVectors];
    std::ptrdiff_t ahead[kStepVectors];  // of the page to fetch while that entry's is read, from it on
    // For queries that see all slots of the entries seen: what a weight is multiplied with to become an integer, and
    // what that is worth.
    alignas(64) float factor[kStepSlots];
    float unit;
  };

  // sum[t][i][v] += n[i][row] * code[row][v], summed over pairs of rows, every kSteps-th pair into one of the kSteps
  // sums. Vectors of codes begin at `codes`, and those of the next pair `stride` bytes behind; the integers of query i
  // at n + i * kStride, and those of the next pair behind them. kFetch: also fetches as many codes,
  // from `ahead` bytes beyond these on. REQUIRES: pairs a multiple of 4.
  template <int kVectors, int kQueries, int kSteps, int kStride, bool kFetch>
  [[gnu::always_inline]] static void add_products(const std::byte* codes, std::ptrdiff_t ahead, std::ptrdiff_t stride,
                                                  int pairs, const std::int16_t* n,
                                                  Ints (&sum)[kSteps][kQueries][kVectors]) {
    for (int pair = 0; pair < pairs; pair += kSteps)
      unrolled<kSteps>([&](auto number) __attribute__((always_inline)) {
        constexpr int kStep = decltype(number)::value;
        Ints code[kVectors];
        for (int v = 0; v < kVectors; ++v) {
          if constexpr (kFetch) prefetch(codes + ahead + v * 64);
          code[v] = Simd::load_units(codes + v * 64);
        }
        codes += stride;
        for (int i = 0; i < kQueries; ++i) {
          std::int32_t two;
          __builtin_memcpy(&two, n + i * kStride, sizeof two);
          for (int v = 0; v < kVectors; ++v) sum[kStep][i][v] = Simd::dot(sum[kStep][i][v], two, code[v]);
        }
        n += 2;
      });
  }

  // Sums in turn: enough to hide the latency of a product.
  template <int kVectors, int kQueries>
  static constexpr int kSteps = Simd::kSums >= 4 * kQueries* kVectors   ? 4
                                : Simd::kSums >= 2 * kQueries* kVectors ? 2
                                                                        : 1;
  template <int kVectors, int kQueries, int kCount>
  [[gnu::always_inline]] static void clear(Ints (&sum)[kCount][kQueries][kVectors]) {
    for (auto& of_step : sum)
      for (auto& of_query : of_step)
        for (Ints& x : of_query) x = Simd::no_ints();
  }
  template <int kVectors, int kQueries, int kCount>
  [[gnu::always_inline]] static Floats total(const Ints (&sum)[kCount][kQueries][kVectors], int i, int v) {
    Ints all = sum[0][i][v];
    for (int t = 1; t < kCount; ++t) all = Simd::add_ints(all, sum[t][i][v]);
    return Simd::to_floats(all);
  }

  static void set_tile(const AttentionPartial& partial, const AttentionState& state, int first, int count, Tile& tile) {
    tile.count = count;
    // Queries are weighed four at a time. The scores of padding are zero, since leftover denormals would be slow.
    for (int i = count; i % kWeighed != 0; ++i) {
      std::fill_n(tile.score[i], kStepSlots, 0.0F);
      tile.unit[i] = 0.0F;
    }
    for (int i = 0; i < count; ++i) {
      const QueryBlock<1> query(partial, state, first + i);
      tile.unit[i] = Parts::to_integers(query.q[0], partial.head_dim, kMostOfQuery, tile.q[i]);
      tile.masks[i] = query.masks[0];
      tile.observed[i] = query.observed[0];
    }
  }

  // Scores of kQueries queries from number `first` of the tile on with all slots of entry `number` of the step.
  // kFetch: also fetches the keys that lie `ahead` bytes behind these.
  template <int kSlotVectors, int kQueries, bool kFetch>
  static void score(const std::byte* page, std::ptrdiff_t ahead, int dim, int number, int first, Tile& tile) {
    constexpr int kVectors = std::min(kSlotVectors, Simd::kVectors);
    constexpr int kSlots = kSlotVectors * 16;
    const auto* scale = reinterpret_cast<const float*>(page + word_scales_offset(dim, kSlots));
    // From the scales of keys to those of values.
    const auto values_after = static_cast<std::ptrdiff_t>(word_scales_offset(kSlots, dim) + kSlots * kWordScaleBytes);
    for (int v0 = 0; v0 < kSlotVectors; v0 += kVectors) {
      Floats sums[kQueries][kVectors];
      const auto add_group = [&](int d, const auto& take) __attribute__((always_inline)) {
        Ints sum[kSteps<kVectors, kQueries>][kQueries][kVectors];
        clear(sum);
        add_products<kVectors, kQueries, kSteps<kVectors, kQueries>, kQueryStride, kFetch>(
            page + static_cast<std::ptrdiff_t>(d / 2 * kSlotVectors + v0) * 64, ahead, kSlotVectors * 64,
            std::min(dim - d, kWordGroup) / 2, tile.q[first] + d, sum);
        for (int i = 0; i < kQueries; ++i)
          for (int v = 0; v < kVectors; ++v) take(sums[i][v], total(sum, i, v));
      };
      add_group(0, [](Floats& to, Floats of_group) { to = of_group; });
      for (int d = kWordGroup; d < dim; d += kWordGroup)
        add_group(d, [](Floats& to, Floats of_group) { to = to + of_group; });
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kFetch) {
          const auto* place = reinterpret_cast<const std::byte*>(scale + (v0 + v) * 16);
          prefetch(place + ahead);
          prefetch(place + ahead + values_after);
        }
        const Floats of_slots = Simd::load(scale + (v0 + v) * 16);
        for (int i = 0; i < kQueries; ++i)
          Simd::store(tile.score[first + i] + number * kSlots + (v0 + v) * 16, of_slots * sums[i][v]);
      }
    }
  }

  // Calls each(vector of the step, entry seen, vector of that) for all vectors of entries that are seen.
  template <int kSlotVectors, class Each>
  [[gnu::always_inline]] static void each_vector(const Step& step, const Each& each) {
    for (int s = 0; s < step.seen_count; ++s)
      for (int v = 0; v < kSlotVectors; ++v) each(step.seen[s] * kSlotVectors + v, s, v);
  }

  // Sets what queries need that see all slots.
  template <int kSlotVectors>
  static void set_factors(Step& step) {
    Ints most = Simd::no_ints();
    each_vector<kSlotVectors>(step, [&](int, int s, int v) {
      most = Simd::most_bits(most, Simd::magnitude(Simd::load(step.value_scales[s] + v * 16)));
    });
    const typename Parts::Unit of(most, kMostOfWeight);
    step.unit = of.unit;
    each_vector<kSlotVectors>(step, [&](int at, int s, int v) {
      Simd::store(step.factor + at * 16, Simd::load(step.value_scales[s] + v * 16) * Simd::all(of.inverse));
    });
  }

  // Takes the scores of a step into the maxima and sums of kWeighed queries from number `from` of the tile on, or of
  // the fewer that are left, and sets their weights as integers. kCount: vectors of scores, or 0 where step.seen_count
  // says. REQUIRES: the first entries of the step are seen, and all their slots; weights are not observed; scores are
  // neither capped nor biased.
  template <int kSlotVectors, int kCount>
  static void weigh_all(const AttentionState& state, int first, const Step& step, int from, Tile& tile) {
    const int count = kCount > 0 ? kCount : step.seen_count * kSlotVectors;
    Floats highest[kWeighed];
    unrolled<kWeighed>([&](auto index) __attribute__((always_inline)) {
      constexpr int i = decltype(index)::value;
      const float* score = tile.score[from + i];
      Floats most = Simd::load(score);
      for (int at = 16; at < count * 16; at += 16) most = Simd::max(Simd::load(score + at), most);
      highest[i] = most;
    });
    const Floats most = Simd::max_four(highest);
    Floats totals[kWeighed];
    unrolled<kWeighed>([&](auto index) __attribute__((always_inline)) {
      constexpr int i = decltype(index)::value;
      const float* score = tile.score[from + i];
      std::int16_t* n = tile.weight[from + i];
      const Floats maximum = Simd::all_of_quarter(most, i);
      const Floats unit = Simd::all(tile.unit[from + i] * kLog2e);
      const auto weight = [&](int at) __attribute__((always_inline)) {
        return power_of_two((Simd::load(score + at) - maximum) * unit);
      };
      Floats total = Simd::zero();
      if constexpr (kSlotVectors == 1) {
        for (int at = 0; at < count * 16; at += 16) {
          const Floats p = weight(at);
          total += p;
          Simd::store_integers(n + at, p * Simd::load(step.factor + at));
        }
      } else {
        for (int at = 0; at < count * 16; at += 32) {
          const Floats p = weight(at), next = weight(at + 16);
          total += p;
          total += next;
          Simd::store_integers(n + at, p * Simd::load(step.factor + at), next * Simd::load(step.factor + at + 16));
        }
      }
      totals[i] = total;
    });
    const int queries = std::min(kWeighed, tile.count - from);
    for (int i = 0; i < queries; ++i) tile.sees[from + i] = true;
    take_step(state, first + from, queries, _mm_mul_ps(Simd::first_of_quarters(most), _mm_load_ps(tile.unit + from)),
              Simd::first_of_quarters(Simd::sum_four(totals)), _mm_set1_ps(step.unit), from, tile);
  }

  // Takes a step's maxima and sums into those of `queries` queries from number `at` on, number `from` of the tile.
  // `unit`: of their integers.
  [[gnu::always_inline]] static void take_step(const AttentionState& state, int at, int queries, __m128 maximum,
                                               __m128 sum, __m128 unit, int from, Tile& tile) {
    alignas(16) float maxima[kWeighed], sums[kWeighed];
    for (int i = 0; i < kWeighed; ++i) {
      maxima[i] = i < queries ? state.maximum[at + i] : 0.0F;
      sums[i] = i < queries ? state.sum[at + i] : 0.0F;
    }
    const __m128 before = _mm_load_ps(maxima);
    const __m128 after = _mm_max_ps(before, maximum);  // NaN, if `maximum` is
    const __m128 keep = Simd::exp_four(_mm_sub_ps(before, after));
    const __m128 take = Simd::exp_four(_mm_sub_ps(maximum, after));
    _mm_storeu_ps(tile.keep + from, keep);
    // A weight that is NaN shows in the sum, but not as an integer.
    const __m128 nan_or_unit = _mm_fmadd_ps(sum, _mm_setzero_ps(), unit);
    _mm_storeu_ps(tile.weight_unit + from, _mm_mul_ps(take, nan_or_unit));
    _mm_store_ps(maxima, after);
    _mm_store_ps(sums, _mm_fmadd_ps(take, sum, _mm_mul_ps(_mm_load_ps(sums), keep)));
    for (int i = 0; i < queries; ++i) {
      state.maximum[at + i] = maxima[i];
      state.sum[at + i] = sums[i];
    }
  }

  // As weigh_all, of one query, whatever it sees.
  template <int kSlotVectors>
  static void weigh_some(const AttentionPartial& partial, const AttentionState& state, int first, const Step& step,
                         int i, Tile& tile) {
    std::uint16_t live[kStepVectors];
    float* const score = tile.score[i];
    float unit = tile.unit[i];
    if (partial.softcap != 0 || partial.biases != nullptr) {
      each_vector<kSlotVectors>(step, [&](int at, int s, int v) {
        Floats scores = Simd::load(score + at * 16) * Simd::all(unit);
        if (partial.softcap != 0) scores = Parts::capped(partial.softcap, scores);
        if (const float* biases = Parts::biases_of(partial, step.first + step.seen[s]))
          scores += Simd::load(biases + v * 16);
        Simd::store(score + at * 16, scores);
      });
      unit = 1.0F;
    }
    Floats highest = Simd::all(-__builtin_inff());
    Ints most = Simd::no_ints();
    std::uint16_t any = 0;
    each_vector<kSlotVectors>(step, [&](int at, int s, int v) {
      const auto bits = static_cast<std::uint16_t>(tile.masks[i][step.first + step.seen[s]] >> (v * 16));
      live[at] = bits;
      any = static_cast<std::uint16_t>(any | bits);
      const auto mask = Simd::mask(bits);
      highest = Simd::where(mask, Simd::max(Simd::load(score + at * 16), highest), highest);
      most = Simd::most_bits(most, Simd::magnitude(Simd::where(mask, Simd::load(step.value_scales[s] + v * 16))));
    });
    tile.sees[i] = any != 0;
    std::int16_t* n = tile.weight[i];
    if (any == 0) {
      each_vector<kSlotVectors>(step, [&](int at, int, int) { Simd::store_integers(n + at * 16, Simd::zero()); });
      return;
    }
    const float greatest = Simd::greatest(highest);
    const Floats maximum = Simd::all(greatest);
    const typename Parts::Unit of(most, kMostOfWeight);
    Floats total = Simd::zero();
    float* const observed = tile.observed[i];
    each_vector<kSlotVectors>(step, [&](int at, int s, int v) {
      const auto mask = Simd::mask(live[at]);
      const Floats p =
          Simd::where(mask, power_of_two((Simd::load(score + at * 16) - maximum) * Simd::all(unit * kLog2e)));
      total += p;
      if (observed != nullptr) Simd::store(observed + (step.first * kSlotVectors + at) * 16, p);
      const Floats factor = Simd::load(step.value_scales[s] + v * 16) * Simd::all(of.inverse);
      Simd::store_integers(n + at * 16, Simd::mul(mask, p, factor));
    });
    const float of_query = greatest * unit;
    if (observed != nullptr)
      for (int s = 0; s < step.seen_count; ++s)
        partial.weight_maxima[static_cast<std::size_t>(first + i) * partial.weight_maximum_stride +
                              static_cast<std::size_t>(step.first + step.seen[s])] = of_query;
    take_step(state, first + i, 1, _mm_set1_ps(of_query), _mm_set1_ps(Simd::sum(total)), _mm_set1_ps(of.unit), i, tile);
  }

  // Adds the weighted values of a step to the sums of kQueries queries from number `first` of the tile on, `weighted`
  // [kQueries][head_dim].
  template <int kSlotVectors, int kVectors, int kQueries, bool kFetch>
  [[gnu::always_inline]] static void add_vectors(const Step& step, int dim, int d, int first, const Tile& tile,
                                                 float* weighted) {
    Ints sum[kSteps<kVectors, kQueries>][kQueries][kVectors];
    clear(sum);
    for (int s = 0; s < step.seen_count; ++s)
      add_products<kVectors, kQueries, kSteps<kVectors, kQueries>, kStepSlots, kFetch>(
          step.values[s] + d * 4, step.ahead[s], static_cast<std::ptrdiff_t>(dim) * 4, kSlotVectors * 8,
          tile.weight[first] + step.seen[s] * kSlotVectors * 16, sum);
    for (int i = 0; i < kQueries; ++i) {
      if (!tile.sees[first + i]) continue;
      const Floats unit = Simd::all(tile.weight_unit[first + i]);
      const Floats keep = Simd::all(tile.keep[first + i]);
      for (int v = 0; v < kVectors; ++v) {
        float* at = weighted + i * dim + d + v * 16;
        Simd::store(at, Simd::fma(unit, total(sum, i, v), Simd::load(at) * keep));
      }
    }
  }
  template <int kSlotVectors, int kQueries, bool kFetch>
  static void add_values(const Step& step, int dim, int first, const Tile& tile, float* weighted) {
    int d = 0;
    for (; d + 16 * Simd::kVectors <= dim; d += 16 * Simd::kVectors)
      add_vectors<kSlotVectors, Simd::kVectors, kQueries, kFetch>(step, dim, d, first, tile, weighted);
    for (; d < dim; d += 16) add_vectors<kSlotVectors, 1, kQueries, kFetch>(step, dim, d, first, tile, weighted);
  }

  // Whether the first entries of the step are seen, and queries [from, end) see all slots of them.
  template <int kSlots>
  static bool see_all(const Step& step, const Tile& tile, int from, int end) {
    if (step.seen[step.seen_count - 1] != step.seen_count - 1) return false;
    SlotMask all = ~SlotMask{0};
    for (int i = from; i < end; ++i)
      for (int s = 0; s < step.seen_count; ++s) all &= tile.masks[i][step.first + s];
    return all == slot_range(0, kSlots);
  }

  // Fetches the share of `count` of `all` queries from number `first` on in what lies at `at`.
  static void fetch(const std::byte* at, std::size_t bytes, int first, int count, int all) {
    const std::size_t share = bytes / static_cast<std::size_t>(all);
    const std::byte* end = at + share * static_cast<std::size_t>(first + count);
    for (at += share * static_cast<std::size_t>(first); at < end; at += 64) __builtin_prefetch(at, 0, 3);
  }

  template <int kSlotVectors>
  static void attend_step(const AttentionPartial& partial, const AttentionState& state, int first, Step& step,
                          Tile& tile) {
    constexpr int kSlots = kSlotVectors * 16;
    const int dim = partial.head_dim;
    // The first queries wait for memory: while they attend, the pages of the next step are fetched.
    const bool fetches = first == 0;
    step.seen_count = 0;
    for (int number = 0; number < step.count; ++number) {
      SlotMask any = 0;
      for (int i = 0; i < tile.count; ++i) any |= tile.masks[i][step.first + number];
      if (any == 0) continue;
      const std::byte* page = partial.pages[step.first + number];
      const std::byte* values = page + word_scales_offset(dim, kSlots) + kSlots * kWordScaleBytes;
      step.values[step.seen_count] = values;
      step.value_scales[step.seen_count] = reinterpret_cast<const float*>(values + word_scales_offset(kSlots, dim));
      step.seen[step.seen_count++] = number;
      const std::ptrdiff_t ahead = page_ahead(partial, step.first + number, kStepSlots / kSlots) - page;
      step.ahead[step.seen_count - 1] = ahead;
      // The next keys come into the first cache in as many shares as there are blocks.
      const std::byte* next = number + 1 < step.count ? partial.pages[step.first + number + 1] : page;
      blocks(tile.count, [&]<int kQueries>(int i) {
        if (fetches && i == 0) return score<kSlotVectors, kQueries, true>(page, ahead, dim, number, i, tile);
        fetch(next, static_cast<std::size_t>(dim * kSlots) * 2, i, kQueries, tile.count);
        score<kSlotVectors, kQueries, false>(page, 0, dim, number, i, tile);
      });
    }
    if (step.seen_count == 0) return;
    const bool plain = partial.softcap == 0 && partial.biases == nullptr && partial.weights == nullptr;
    if (plain) set_factors<kSlotVectors>(step);
    for (int i = 0; i < tile.count; i += kWeighed) {
      const int end = std::min(tile.count, i + kWeighed);
      for (int s = 0; !fetches && s < step.seen_count; ++s)
        fetch(step.values[s], static_cast<std::size_t>(dim * kSlots) * 2, i, kWeighed, tile.count);
      if (plain && see_all<kSlots>(step, tile, i, end)) {
        if (step.seen_count == kStepSlots / kSlots) {
          weigh_all<kSlotVectors, kStepVectors>(state, first, step, i, tile);
        } else {
          weigh_all<kSlotVectors, 0>(state, first, step, i, tile);
        }
      } else {
        for (int one = i; one < end; ++one) weigh_some<kSlotVectors>(partial, state, first, step, one, tile);
      }
    }
    blocks(tile.count, [&]<int kQueries>(int i) {
      float* weighted = state.weighted + static_cast<std::size_t>(first + i) * static_cast<std::size_t>(dim);
      if (fetches && i == 0) return add_values<kSlotVectors, kQueries, true>(step, dim, i, tile, weighted);
      add_values<kSlotVectors, kQueries, false>(step, dim, i, tile, weighted);
    });
  }

  // Calls block<kQueries>(first) for blocks that cover `queries` queries.
  template <class Block>
  [[gnu::always_inline]] static void blocks(int queries, const Block& block) {
    int first = 0;
    if constexpr (8 * Simd::kVectors <= Simd::kSums)
      for (; first + 8 <= queries; first += 8) block.template operator()<8>(first);
    for (; first + 4 <= queries; first += 4) block.template operator()<4>(first);
    switch (queries - first) {
      case 3: return block.template operator()<3>(first);
      case 2: return block.template operator()<2>(first);
      case 1: return block.template operator()<1>(first);
      default: return;
    }
  }

  template <int kSlotVectors>
  static void attend_run(const AttentionPartial& partial, const AttentionState& state) {
    Tile tile;
    const int queries = partial.rows * partial.group;
    for (int first = 0; first < queries; first += kTile) {
      set_tile(partial, state, first, std::min(queries - first, kTile), tile);
      Step step;
      for (; step.first < partial.entries; step.first += step.count) {
        step.count = 1;
        while (step.first + step.count < partial.entries && (partial.joined >> (step.first + step.count) & 1) != 0)
          ++step.count;
        attend_step<kSlotVectors>(partial, state, first, step, tile);
      }
    }
  }

  // A run of entries in i16. REQUIRES: head_dim a multiple of 16.
  static void attend(const AttentionPartial& partial, const AttentionState& state) {
    Parts::with_slot_vectors(partial.slots, [&]<int kSlotVectors>() { attend_run<kSlotVectors>(partial, state); });
  }
};

}  // namespace
}  // namespace kvasir
