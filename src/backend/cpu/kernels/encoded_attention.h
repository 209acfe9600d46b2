// Attention over encoded pages, as integer_products.h defines it: a page is opened to integers of 16 bits in the first
// cache, once for all queries of a tile, and multiplied in pairs of rows. Written once, over vectors of 16 lanes;
// compiled for each instruction set by the file that includes it.
//
// `Simd` has: Floats and Ints of 16 lanes; kVectors, those of a group that are summed at once; kSums, how many sums are
// kept in registers; and the functions used below, which are those of the instruction set but for
//   dot(sum, pair, codes)  sum + the product of two 16-bit integers with each pair of codes
//   sum_four, most_four    of four vectors, in the order of sum16
//   weigh, add_floats      the parts of attention that entries of all formats share
#pragma once

#include "backend/cpu/kernels/attend_runs.h"
#include "backend/cpu/kernels/decode_page.h"
#include "backend/cpu/kernels/integer_products.h"

namespace kvasir {
namespace {

inline constexpr int kTileQueries = 32;             // that read a page once it is opened
inline constexpr int kMaxScales = kMaxHeadDim * 2;  // of a side: 16 groups of 64 slots, or 2 of 512 dimensions
static_assert(kMaxHeadDim / kCodecGroup * 64 <= kMaxScales);

// One side of a page. Rows of keys are dimensions, rows of values slots.
struct OpenSide {
  EncodedSide side;
  bool encoded = false;
  union {
    alignas(64) std::int16_t codes[kMaxCodes];  // as in page_layout.h
    alignas(64) float plain[kMaxCodes];         // [rows][count], if not encoded
  };
  alignas(64) float scale[kMaxScales];
  alignas(64) float least[kMaxScales];
  // Of outliers, in order of place: the element's row and place in it, and its distance from what its code 0 says.
  int outliers = 0;
  std::uint16_t row[kMaxCodes / 100 + 1];
  std::uint16_t place[kMaxCodes / 100 + 1];
  float beyond[kMaxCodes / 100 + 1];

  OpenSide() {}  // leaves the arrays as they are
};

template <class Simd>
struct EncodedAttention {
  using Floats = typename Simd::Floats;
  using Ints = typename Simd::Ints;

  // Queries as integers, for q8 keys.
  struct QueryIntegers {
    alignas(64) std::int16_t n[kTileQueries][kMaxHeadDim];
    float unit[kTileQueries];

    QueryIntegers() {}
  };

  struct OpenPage {
    OpenSide keys;
    OpenSide values;
    QueryIntegers queries;
  };

  // out[i]: the sum of vector i.
  template <int kCount>
  [[gnu::always_inline]] static void sums(const Floats (&of)[kCount], float (&out)[kCount]) {
    int i = 0;
    for (; i + 4 <= kCount; i += 4) Simd::sum_four(of + i, out + i);
    for (; i < kCount; ++i) out[i] = Simd::sum(of[i]);
  }

  // The unit and its inverse for numbers whose greatest magnitude is that of a lane of `most`, as bits: those of what
  // is not finite are greater than all others.
  template <int kCount>
  [[gnu::always_inline]] static void units(const Ints (&most)[kCount], float (&unit)[kCount],
                                           float (&inverse)[kCount]) {
    std::uint32_t bits[kCount];
    int i = 0;
    for (; i + 4 <= kCount; i += 4) Simd::most_four(most + i, bits + i);
    for (; i < kCount; ++i) bits[i] = Simd::most(most[i]);
    for (i = 0; i < kCount; ++i) {
      float highest;
      __builtin_memcpy(&highest, bits + i, sizeof highest);
      const bool finite = bits[i] < 0x7f800000U;
      unit[i] = finite ? highest * kUnit : __builtin_nanf("");
      inverse[i] = finite && highest >= kLeastInteger ? kMostInteger / highest : 0.0F;
    }
  }

  // sum[i][v] = sum over pairs of rows of n[i][row] * code[row][16 v ..]. `codes`: at the first pair and element, pairs
  // `stride` codes apart; `n`: [2 * pairs] of query i at n + i * n_stride. REQUIRES: pairs a multiple of 4.
  template <int kVectors, int kQueries>
  [[gnu::always_inline]] static void products(const std::int16_t* codes, int stride, int pairs, const std::int16_t* n,
                                              int n_stride, Ints (&sum)[kQueries][kVectors]) {
    // As many sums at once as hide the latency of a product.
    constexpr int kAtOnce = Simd::kSums / (kQueries * kVectors);
    constexpr int kSteps = kAtOnce >= 4 ? 4 : kAtOnce >= 2 ? 2 : 1;
    Ints part[kSteps][kQueries][kVectors];
    for (int t = 0; t < kSteps; ++t)
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < kVectors; ++v) part[t][i][v] = Simd::no_ints();
    for (int pair = 0; pair < pairs; pair += kSteps, codes += kSteps * stride, n += 2 * kSteps) {
      for (int t = 0; t < kSteps; ++t) {
        Ints code[kVectors];
        for (int v = 0; v < kVectors; ++v) code[v] = Simd::load_codes(codes + t * stride + v * 32);
        for (int i = 0; i < kQueries; ++i) {
          std::int32_t two;
          __builtin_memcpy(&two, n + i * n_stride + 2 * t, sizeof two);
          for (int v = 0; v < kVectors; ++v) part[t][i][v] = Simd::dot(part[t][i][v], two, code[v]);
        }
      }
    }
    for (int i = 0; i < kQueries; ++i)
      for (int v = 0; v < kVectors; ++v) {
        sum[i][v] = part[0][i][v];
        for (int t = 1; t < kSteps; ++t) sum[i][v] = Simd::add(sum[i][v], part[t][i][v]);
      }
  }

  static void open_side(const EncodedSide& side, int scales, OpenSide& open) {
    open.side = side;
    Simd::open_codes(side, open.codes);
    for (int i = 0; i < scales; i += 16) Simd::store(open.scale + i, Simd::load_halves(side.scale + i * 2));
    if (side.least == nullptr) return;
    for (int i = 0; i < scales; i += 16) Simd::store(open.least + i, Simd::load_halves(side.least + i * 2));
    for (int o = 0; o < side.apart; ++o) {
      const std::byte* at = side.places + static_cast<std::size_t>(o) * kOutlierBytes;
      std::uint16_t place;
      __builtin_memcpy(&place, at, sizeof place);
      if (place == kNoPlace) return;
      const int row = place / side.count;
      const int i = place % side.count;
      open.row[open.outliers] = static_cast<std::uint16_t>(row);
      open.place[open.outliers] = static_cast<std::uint16_t>(i);
      open.beyond[open.outliers] = half_at(at + 2) - open.least[i / kCodecGroup * side.rows + row];
      ++open.outliers;
    }
  }

  static void open_page(const PageFormat& format, const std::byte* page, OpenSide& keys, OpenSide& values) {
    const int elements = format.head_dim * format.slots;
    keys.encoded = is_encoded(format.key);
    values.encoded = is_encoded(format.value);
    keys.outliers = values.outliers = 0;
    if (keys.encoded) {
      open_side(encoded_keys(format, page), key_scales(format), keys);
    } else {
      load_side(format.key, page, elements, keys.plain);
    }
    if (values.encoded) {
      open_side(encoded_values(format, page), value_scales(format), values);
    } else {
      load_side(format.value, page + values_offset(format), elements, values.plain);
    }
  }

  static void to_integers(const AttentionPartial& partial, int first, int count, QueryIntegers& out) {
    for (int i = 0; i < count; ++i) {
      const int query = first + i;
      const float* q = partial.q + static_cast<std::size_t>(query / partial.group) * partial.q_row_stride +
                       static_cast<std::size_t>(query % partial.group * partial.head_dim);
      Ints most[1] = {Simd::no_ints()};
      for (int d = 0; d < partial.head_dim; d += 16)
        most[0] = Simd::most_bits(most[0], Simd::magnitude(Simd::load(q + d)));
      float unit[1], inverse[1];
      units(most, unit, inverse);
      out.unit[i] = unit[0];
      for (int d = 0; d < partial.head_dim; d += 16)
        Simd::store_integers(out.n[i] + d, Simd::mul(Simd::load(q + d), Simd::all(inverse[0])));
    }
  }

  // Scores of a block, [kQueries][64]. q8: scales are those of slots, for each group of dimensions.
  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void score_q8(const OpenSide& keys, const std::int16_t* n, const float* unit,
                                              float* score) {
    constexpr int kVectors = kSlotVectors < Simd::kVectors ? kSlotVectors : Simd::kVectors;
    constexpr int kSlots = kSlotVectors * 16;
    const int dims = keys.side.rows;
    for (int v0 = 0; v0 < kSlotVectors; v0 += kVectors) {
      Floats total[kQueries][kVectors];
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < kVectors; ++v) total[i][v] = Simd::zero();
      for (int d = 0; d < dims; d += kCodecGroup) {
        const int size = dims - d < kCodecGroup ? dims - d : kCodecGroup;
        Ints sum[kQueries][kVectors];
        products<kVectors, kQueries>(keys.codes + d * kSlots + v0 * 32, 2 * kSlots, size / 2, n + d, kMaxHeadDim, sum);
        for (int v = 0; v < kVectors; ++v) {
          const Floats factor = Simd::load(keys.scale + d / kCodecGroup * kSlots + (v0 + v) * 16);
          for (int i = 0; i < kQueries; ++i) total[i][v] = Simd::fma(factor, Simd::to_floats(sum[i][v]), total[i][v]);
        }
      }
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < kVectors; ++v)
          Simd::store(score + i * 64 + (v0 + v) * 16, Simd::mul(Simd::all(unit[i]), total[i][v]));
    }
  }

  // Of others: scales are those of dimensions, for each group of slots.
  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void score_groups(const OpenSide& keys, const float* const (&q)[kQueries],
                                                  float* score) {
    constexpr int kGroupVectors = kSlotVectors < 2 ? kSlotVectors : 2;
    constexpr int kVectors = kSlotVectors < Simd::kVectors ? kSlotVectors : Simd::kVectors;
    constexpr int kSlots = kSlotVectors * 16;
    const int dims = keys.side.rows;
    alignas(64) float scaled[kQueries][kMaxHeadDim];
    alignas(64) std::int16_t n[kQueries][kMaxHeadDim];
    for (int v0 = 0; v0 < kSlotVectors; v0 += kGroupVectors) {
      const float* scale = keys.scale + v0 * 16 / kCodecGroup * dims;
      const float* least = keys.least + v0 * 16 / kCodecGroup * dims;
      Ints most[kQueries];
      Floats lanes[kQueries];
      for (int i = 0; i < kQueries; ++i) {
        most[i] = Simd::no_ints();
        lanes[i] = Simd::zero();
      }
      for (int d = 0; d < dims; d += 16) {
        const Floats factor = Simd::load(scale + d);
        const Floats lowest = Simd::load(least + d);
        for (int i = 0; i < kQueries; ++i) {
          const Floats x = Simd::load(q[i] + d);
          const Floats a = Simd::mul(x, factor);
          Simd::store(scaled[i] + d, a);
          most[i] = Simd::most_bits(most[i], Simd::magnitude(a));
          lanes[i] = Simd::fma(x, lowest, lanes[i]);
        }
      }
      float unit[kQueries], inverse[kQueries], low[kQueries];
      units(most, unit, inverse);
      sums(lanes, low);
      for (int i = 0; i < kQueries; ++i)
        for (int d = 0; d < dims; d += 16)
          Simd::store_integers(n[i] + d, Simd::mul(Simd::load(scaled[i] + d), Simd::all(inverse[i])));
      for (int v1 = 0; v1 < kGroupVectors; v1 += kVectors) {
        Ints sum[kQueries][kVectors];
        products<kVectors, kQueries>(keys.codes + (v0 + v1) * 32, 2 * kSlots, dims / 2, n[0], kMaxHeadDim, sum);
        for (int i = 0; i < kQueries; ++i)
          for (int v = 0; v < kVectors; ++v)
            Simd::store(score + i * 64 + (v0 + v1 + v) * 16,
                        Simd::fma(Simd::all(unit[i]), Simd::to_floats(sum[i][v]), Simd::all(low[i])));
      }
    }
    for (int o = 0; o < keys.outliers; ++o)
      for (int i = 0; i < kQueries; ++i) {
        float& s = score[i * 64 + keys.place[o]];
        s = __builtin_fmaf(q[i][keys.row[o]], keys.beyond[o], s);
      }
  }

  // Adds products with the values to weighted[i][0 .. 16 * kVectors), of one group.
  template <int kVectors, int kQueries>
  [[gnu::always_inline]] static void add_group(const std::int16_t* codes, int stride, int slots, const std::int16_t* n,
                                               const SlotMask (&live)[kQueries], const float (&unit)[kQueries],
                                               const float (&low)[kQueries], const float* keep, float* const* weighted,
                                               int offset) {
    Ints sum[kQueries][kVectors];
    products<kVectors, kQueries>(codes, stride, slots / 2, n, 64, sum);
    for (int i = 0; i < kQueries; ++i) {
      if (live[i] == 0) continue;
      for (int v = 0; v < kVectors; ++v) {
        float* at = weighted[i] + offset + v * 16;
        const Floats add = Simd::fma(Simd::all(unit[i]), Simd::to_floats(sum[i][v]), Simd::all(low[i]));
        Simd::store(at, Simd::fma(Simd::load(at), Simd::all(keep[i]), add));
      }
    }
  }

  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void add_values(const OpenSide& values, const SlotMask (&live)[kQueries],
                                                const float* weight, const float* keep,
                                                float* const (&weighted)[kQueries]) {
    constexpr int kSlots = kSlotVectors * 16;
    constexpr int kMaxGroups = kMaxHeadDim / kCodecGroup;
    const int dims = values.side.count;
    const int groups = code_groups(dims);
    const bool has_least = values.side.least != nullptr;
    alignas(64) float scaled[kMaxGroups][kQueries][kSlots];
    alignas(64) std::int16_t n[kQueries][64];
    float low[kMaxGroups][kQueries] = {};
    Ints most[kQueries];
    for (int i = 0; i < kQueries; ++i) most[i] = Simd::no_ints();
    for (int group = 0; group < groups; ++group) {
      Floats lanes[kQueries];
      for (int i = 0; i < kQueries; ++i) {
        lanes[i] = Simd::zero();
        for (int v = 0; v < kSlotVectors; ++v) {
          const auto mask = static_cast<std::uint16_t>(live[i] >> (v * 16));
          const Floats w = Simd::load(mask, weight + i * 64 + v * 16);
          const Floats a = Simd::mul(w, Simd::load(mask, values.scale + group * kSlots + v * 16));
          Simd::store(scaled[group][i] + v * 16, a);
          most[i] = Simd::most_bits(most[i], Simd::magnitude(a));
          if (has_least) lanes[i] = Simd::fma(w, Simd::load(mask, values.least + group * kSlots + v * 16), lanes[i]);
        }
      }
      if (has_least) sums(lanes, low[group]);
    }
    float unit[kQueries], inverse[kQueries];
    units(most, unit, inverse);
    for (int group = 0; group < groups; ++group) {
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < kSlotVectors; ++v)
          Simd::store_integers(n[i] + v * 16, Simd::mul(Simd::load(scaled[group][i] + v * 16), Simd::all(inverse[i])));
      const int begin = group * kCodecGroup;
      const int end = begin + group_size(dims, group);
      for (int d = begin; d < end; d += 16 * Simd::kVectors) {
        const std::int16_t* codes = values.codes + 2 * d;
        if (end - d >= 16 * Simd::kVectors) {
          add_group<Simd::kVectors, kQueries>(codes, 2 * dims, kSlots, n[0], live, unit, low[group], keep, weighted, d);
        } else {
          add_group<1, kQueries>(codes, 2 * dims, kSlots, n[0], live, unit, low[group], keep, weighted, d);
        }
      }
    }
    for (int o = 0; o < values.outliers; ++o)
      for (int i = 0; i < kQueries; ++i)
        if ((live[i] >> values.row[o] & 1) != 0) {
          float& sum = weighted[i][values.place[o]];
          sum = __builtin_fmaf(weight[i * 64 + values.row[o]], values.beyond[o], sum);
        }
  }

  // One entry of a partial and kQueries of its queries from `first` on, the first of which is number `of_tile` of its
  // tile.
  template <int kSlotVectors, int kQueries>
  static void attend_entry(const AttentionPartial& partial, const AttentionState& state, const OpenPage& page, int e,
                           int first, int of_tile) {
    const QueryBlock<kQueries> block(partial, state, first);
    SlotMask live[kQueries];
    if (!block.live(e, live)) return;
    alignas(64) float score[kQueries * 64];
    alignas(64) float weight[kQueries * 64];
    float keep[kQueries];
    if (!page.keys.encoded) {
      Simd::template score_floats<kSlotVectors, kQueries>(page.keys.plain, partial.head_dim, block.q, score);
    } else if (page.keys.side.type == KvType::kQ8) {
      score_q8<kSlotVectors, kQueries>(page.keys, page.queries.n[of_tile], page.queries.unit + of_tile, score);
    } else {
      score_groups<kSlotVectors, kQueries>(page.keys, block.q, score);
    }
    Simd::template weigh<kSlotVectors, kQueries>(partial, state, first, block, e, live, score, weight, keep);
    if (page.values.encoded) {
      add_values<kSlotVectors, kQueries>(page.values, live, weight, keep, block.weighted);
    } else {
      Simd::template add_floats<kQueries>(page.values.plain, partial.head_dim, live, weight, keep, block.weighted);
    }
  }

  static bool seen(const AttentionPartial& partial, int entry) {
    SlotMask any = 0;
    for (int r = 0; r < partial.rows; ++r)
      any |= partial.masks[static_cast<std::size_t>(r) * partial.mask_row_stride + static_cast<std::size_t>(entry)];
    return any != 0;
  }

  template <int kSlotVectors>
  static void attend_run(const AttentionPartial& partial, const AttentionState& state) {
    OpenPage page;
    const PageFormat& format = **partial.formats;
    const std::size_t bytes = format.bytes();
    const int queries = partial.rows * partial.group;
    for (int tile = 0; tile < queries; tile += kTileQueries) {
      const int count = queries - tile < kTileQueries ? queries - tile : kTileQueries;
      if (format.key == KvType::kQ8) to_integers(partial, tile, count, page.queries);
      for (int e = 0; e < partial.entries; ++e) {
        if (e + 1 < partial.entries)
          for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(partial.pages[e + 1] + at);
        if (!seen(partial, e)) continue;
        open_page(format, partial.pages[e], page.keys, page.values);
        Simd::template query_blocks<kSlotVectors>(count, [&]<int kQueries>(int first) {
          attend_entry<kSlotVectors, kQueries>(partial, state, page, e, tile + first, first);
        });
      }
    }
  }

  // A run of entries in one encoded format. REQUIRES: head_dim a multiple of 16.
  static void attend(const AttentionPartial& partial, const AttentionState& state) {
    switch (partial.slots) {
      case 16: return attend_run<1>(partial, state);
      case 32: return attend_run<2>(partial, state);
      default: return attend_run<4>(partial, state);
    }
  }
};

}  // namespace
}  // namespace kvasir
