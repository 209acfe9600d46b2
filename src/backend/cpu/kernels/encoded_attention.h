// Attention over encoded pages, as integer_products.h defines it: codes are opened to integers of 16 bits in registers,
// or where the shape of a side does not allow that in the first cache, once for all queries of a tile, and multiplied
// in pairs of rows. Written once, over vectors of 16 lanes (avx512/simd.h); compiled for each instruction set by the
// file that includes it.
#pragma once

#include "backend/cpu/kernels/attention_parts.h"
#include "backend/cpu/kernels/code_vectors.h"
#include "backend/cpu/kernels/integer_products.h"
#include "backend/cpu/kernels/open_side.h"
#include "backend/cpu/kernels/prefetch.h"

namespace kvasir {
namespace {

inline constexpr int kTileQueries = 32;                       // that share an opened page
inline constexpr int kMaxGroups = kMaxHeadDim / kCodecGroup;  // of a row of values

template <class Simd>
struct EncodedAttention {
  using Floats = typename Simd::Floats;
  using Ints = typename Simd::Ints;
  using Mask = typename Simd::Mask;
  using Parts = AttentionParts<Simd>;
  using Opener = SideOpener<Simd>;

  [[gnu::always_inline]] static Floats halves(const std::byte* p) {
    return Simd::template load_elements<KvType::kF16>(p);
  }

  // Queries as integers, for q8 keys.
  struct QueryIntegers {
    alignas(64) std::int16_t n[kTileQueries][kMaxHeadDim];
    alignas(64) float unit[kTileQueries];

    QueryIntegers() {}
  };

  struct OpenPage {
    OpenSide keys;
    OpenSide values;
    QueryIntegers queries;
  };

  // The units of some queries' numbers, and their inverses. Arrays have room for a multiple of 4.
  template <int kQueries>
  struct Units {
    static constexpr int kRoom = (kQueries + 3) / 4 * 4;
    alignas(16) float unit[kRoom];
    alignas(16) float inverse[kRoom];

    [[gnu::always_inline]] explicit Units(const Ints (&most)[kRoom]) {
      for (int i = 0; i < kRoom; i += 4) Simd::units_four(most + i, unit + i, inverse + i);
    }
  };

  // out[i]: the sum of vector i.
  template <int kCount>
  [[gnu::always_inline]] static void sums(const Floats (&of)[kCount], float* out) {
    int i = 0;
    for (; i + 4 <= kCount; i += 4) Simd::sum_four(of + i, out + i);
    for (; i < kCount; ++i) out[i] = Simd::sum(of[i]);
  }

  // sum[i][v] = sum over pairs of rows of n[i][row] * code[row][kFirst + v]. Rows have kRow of a block's vectors from
  // block `block` on, and of each other pair (or of the next block, if rows are shorter) `stride` blocks behind; with
  // kParts = 1, vector v is block + v. `n`: [2 * pairs] of query i at n + i * n_stride. REQUIRES: pairs a multiple of
  // 4, and of those of a block.
  template <int kRow, int kFirst, int kVectors, int kQueries, class Source>
  [[gnu::always_inline]] static void products(const Source& codes, int block, int stride, int pairs,
                                              const std::int16_t* n, int n_stride, Ints (&sum)[kQueries][kVectors]) {
    // As many sums at once as hide the latency of a product.
    constexpr int kAtOnce = Simd::kSums / (kQueries * kVectors);
    constexpr int kSteps = kAtOnce >= 4 ? 4 : kAtOnce >= 2 ? 2 : 1;
    constexpr int kPairs = Source::kParts == 1 ? kSteps : Source::kParts / kRow;
    Ints part[kSteps][kQueries][kVectors];
    for (int t = 0; t < kSteps; ++t)
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < kVectors; ++v) part[t][i][v] = Simd::no_ints();
    const auto add = [&](int t, int pair, const Ints(&code)[kVectors]) __attribute__((always_inline)) {
      for (int i = 0; i < kQueries; ++i) {
        std::int32_t two;
        __builtin_memcpy(&two, n + i * n_stride + 2 * pair, sizeof two);
        for (int v = 0; v < kVectors; ++v) part[t][i][v] = Simd::dot(part[t][i][v], two, code[v]);
      }
    };
    for (int pair = 0; pair < pairs; pair += kPairs) {
      if constexpr (Source::kParts == 1) {
        for (int p = 0; p < kPairs; ++p, block += stride) {
          Ints code[kVectors];
          for (int v = 0; v < kVectors; ++v) code[v] = codes.block(block + v);
          add(p, pair + p, code);
        }
      } else {
        const auto of = codes.block(block);
        block += stride;
        unrolled<kPairs>([&](auto number) __attribute__((always_inline)) {
          constexpr int kPair = decltype(number)::value;
          Ints code[kVectors];
          unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
            constexpr int kVector = decltype(v)::value;
            code[kVector] = Source::template part<kPair * kRow + kFirst + kVector>(of);
          });
          add(kPair % kSteps, pair + kPair, code);
        });
      }
    }
    for (int i = 0; i < kQueries; ++i)
      for (int v = 0; v < kVectors; ++v) {
        sum[i][v] = part[0][i][v];
        for (int t = 1; t < kSteps; ++t) sum[i][v] = Simd::add_ints(sum[i][v], part[t][i][v]);
      }
  }

  static void to_integers(const AttentionPartial& partial, const AttentionState& state, int first, int count,
                          QueryIntegers& out) {
    for (int i = 0; i < count; ++i)
      out.unit[i] =
          Parts::to_integers(QueryBlock<1>(partial, state, first + i).q[0], partial.head_dim, kMostInteger, out.n[i]);
  }

  // Scores of a block, [kQueries][64]. q8: scales are those of slots, for each group of dimensions.
  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void score_q8(const EncodedSide& keys, const std::int16_t* n, const float* unit,
                                              float* score) {
    constexpr int kVectors = kSlotVectors < Simd::kVectors ? kSlotVectors : Simd::kVectors;
    constexpr int kSlots = kSlotVectors * 16;
    const int dims = keys.rows;
    const ByteCodes<Simd> codes{keys.data};
    for (int v0 = 0; v0 < kSlotVectors; v0 += kVectors) {
      Floats total[kQueries][kVectors];
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < kVectors; ++v) total[i][v] = Simd::zero();
      for (int d = 0; d < dims; d += kCodecGroup) {
        const int size = dims - d < kCodecGroup ? dims - d : kCodecGroup;
        Ints sum[kQueries][kVectors];
        products<1, 0, kVectors, kQueries>(codes, d / 2 * kSlotVectors + v0, kSlotVectors, size / 2, n + d, kMaxHeadDim,
                                           sum);
        for (int v = 0; v < kVectors; ++v) {
          const Floats factor = halves(keys.scale + (d / kCodecGroup * kSlots + (v0 + v) * 16) * 2);
          for (int i = 0; i < kQueries; ++i) total[i][v] = Simd::fma(factor, Simd::to_floats(sum[i][v]), total[i][v]);
        }
      }
      for (int i = 0; i < kQueries; ++i)
        for (int v = 0; v < kVectors; ++v)
          Simd::store(score + i * 64 + (v0 + v) * 16, Simd::all(unit[i]) * total[i][v]);
    }
  }

  // Queries times the scales of a group of slots, as integers.
  template <int kQueries>
  struct ScaledQueries {
    float unit[kQueries];
    alignas(16) float low[kQueries];  // sum of q * least
    alignas(64) std::int16_t n[kQueries][kMaxHeadDim];

    [[gnu::always_inline]] ScaledQueries(const float* const (&q)[kQueries], const std::byte* scale,
                                         const std::byte* least, int dims) {
      constexpr int kAtOnce = kQueries < Simd::kQueries ? kQueries : Simd::kQueries;
      Ints most[Units<kQueries>::kRoom];
      Floats lanes[kQueries];
      for (int i = kQueries; i < Units<kQueries>::kRoom; ++i) most[i] = Simd::no_ints();
      for (int first = 0; first < kQueries; first += kAtOnce) {
        Ints highest[kAtOnce];
        Floats sum[kAtOnce];
        for (int i = 0; i < kAtOnce; ++i) {
          highest[i] = Simd::no_ints();
          sum[i] = Simd::zero();
        }
        for (int d = 0; d < dims; d += 16) {
          const Floats factor = halves(scale + d * 2);
          const Floats lowest = halves(least + d * 2);
          for (int i = 0; i < kAtOnce; ++i) {
            const Floats x = Simd::load(q[first + i] + d);
            highest[i] = Simd::most_bits(highest[i], Simd::magnitude(x * factor));
            sum[i] = Simd::fma(x, lowest, sum[i]);
          }
        }
        for (int i = 0; i < kAtOnce; ++i) {
          most[first + i] = highest[i];
          lanes[first + i] = sum[i];
        }
      }
      sums(lanes, low);
      const Units<kQueries> units(most);
      for (int i = 0; i < kQueries; ++i) unit[i] = units.unit[i];
      int d = 0;
      for (; d + 32 <= dims; d += 32) {
        const Floats factor[2] = {halves(scale + d * 2), halves(scale + d * 2 + 32)};
        for (int i = 0; i < kQueries; ++i) {
          const Floats inverse = Simd::all(units.inverse[i]);
          Simd::store_integers(n[i] + d, Simd::load(q[i] + d) * factor[0] * inverse,
                               Simd::load(q[i] + d + 16) * factor[1] * inverse);
        }
      }
      if (d == dims) return;
      const Floats factor = halves(scale + d * 2);
      for (int i = 0; i < kQueries; ++i)
        Simd::store_integers(n[i] + d, Simd::load(q[i] + d) * factor * Simd::all(units.inverse[i]));
    }
  };

  // Scores with slot vectors [kFirst, kFirst + kVectors) of kSlotVectors.
  template <int kSlotVectors, int kFirst, int kVectors, int kQueries, class Source>
  [[gnu::always_inline]] static void score_vectors(const Source& codes, int dims, const ScaledQueries<kQueries>& scaled,
                                                   float* score) {
    Ints sum[kQueries][kVectors];
    if constexpr (Source::kParts == 1) {
      products<1, 0, kVectors, kQueries>(codes, kFirst, kSlotVectors, dims / 2, scaled.n[0], kMaxHeadDim, sum);
    } else {
      products<kSlotVectors, kFirst, kVectors, kQueries>(codes, 0, 1, dims / 2, scaled.n[0], kMaxHeadDim, sum);
    }
    for (int i = 0; i < kQueries; ++i)
      for (int v = 0; v < kVectors; ++v)
        Simd::store(score + i * 64 + (kFirst + v) * 16,
                    Simd::fma(Simd::all(scaled.unit[i]), Simd::to_floats(sum[i][v]), Simd::all(scaled.low[i])));
  }

  // Scores of a block with keys of other codecs: scales are those of dimensions, for each group of slots.
  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void score_groups(const OpenSide& keys, const float* const (&q)[kQueries],
                                                  float* score) {
    constexpr int kGroupVectors = kSlotVectors < 2 ? kSlotVectors : 2;
    constexpr int kVectors = kSlotVectors < Simd::kVectors ? kSlotVectors : Simd::kVectors;
    const EncodedSide& side = keys.side;
    const int dims = side.rows;
    unrolled<kSlotVectors / kGroupVectors>([&](auto number) __attribute__((always_inline)) {
      constexpr int kGroup = decltype(number)::value;
      const ScaledQueries<kQueries> scaled(q, side.scale + kGroup * dims * 2, side.least + kGroup * dims * 2, dims);
      const auto score_all = [&](const auto& codes) __attribute__((always_inline)) {
        unrolled<kGroupVectors / kVectors>([&](auto v) __attribute__((always_inline)) {
          constexpr int kFirst = kGroup * kGroupVectors + decltype(v)::value * kVectors;
          score_vectors<kSlotVectors, kFirst, kVectors>(codes, dims, scaled, score);
        });
      };
      if constexpr (kSlotVectors == 2) {
        switch (keys.source) {
          case CodeSource::kPlane4: score_all(PlaneCodes<Simd, 4>{side.data}); return;
          case CodeSource::kPlane2: score_all(PlaneCodes<Simd, 2>{side.data}); return;
          default: score_all(ThreeBitCodes<Simd>{side.data, side.data + side.codes / 4}); return;
        }
      } else {
        score_all(WordCodes<Simd>{keys.codes});
      }
    });
    for (int o = 0; o < keys.outliers; ++o) {
      const int d = keys.row[o];
      const float beyond = keys.beyond[o];
      float* at = score + keys.place[o];
      unrolled<kQueries>([&](int i) __attribute__((always_inline)) {
        at[i * 64] = __builtin_fmaf(q[i][d], beyond, at[i * 64]);
      });
    }
  }

  // Weights times the scales of values, as integers, and the sums that their products are added to.
  template <int kSlotVectors, int kQueries>
  struct ScaledWeights {
    static constexpr int kSlots = kSlotVectors * 16;
    const SlotMask (&live)[kQueries];
    const float* keep;
    float* const (&weighted)[kQueries];
    float unit[kQueries];
    alignas(16) float low[kMaxGroups][kQueries];  // sum of weight * least
    alignas(64) std::int16_t n[kMaxGroups][kQueries][kSlots];

    [[gnu::always_inline]] ScaledWeights(const EncodedSide& values, const SlotMask (&live_slots)[kQueries],
                                         const float* weight, const float* kept, float* const (&sums_of)[kQueries])
        : live(live_slots), keep(kept), weighted(sums_of) {
      const int groups = code_groups(values.count);
      const bool has_least = values.least != nullptr;
      Ints most[Units<kQueries>::kRoom];
      for (Ints& of : most) of = Simd::no_ints();
      for (int group = 0; group < groups; ++group) {
        Floats lanes[kQueries];
        for (int i = 0; i < kQueries; ++i) lanes[i] = Simd::zero();
        for (int v = 0; v < kSlotVectors; ++v) {
          const int at = group * kSlots + v * 16;
          const Floats factor = halves(values.scale + at * 2);
          const Floats lowest = has_least ? halves(values.least + at * 2) : Simd::zero();
          for (int i = 0; i < kQueries; ++i) {
            const Mask mask = Simd::mask(static_cast<std::uint16_t>(live[i] >> (v * 16)));
            const Floats w = Simd::load(weight + i * 64 + v * 16);
            most[i] = Simd::most_bits(most[i], Simd::magnitude(Simd::mul(mask, w, factor)));
            if (has_least) lanes[i] = Simd::fma(mask, w, lowest, lanes[i]);
          }
        }
        if (has_least) {
          sums(lanes, low[group]);
        } else {
          for (int i = 0; i < kQueries; ++i) low[group][i] = 0.0F;
        }
      }
      const Units<kQueries> units(most);
      for (int i = 0; i < kQueries; ++i) unit[i] = units.unit[i];
      for (int group = 0; group < groups; ++group) {
        Floats factor[kSlotVectors];
        for (int v = 0; v < kSlotVectors; ++v) factor[v] = halves(values.scale + (group * kSlots + v * 16) * 2);
        for (int i = 0; i < kQueries; ++i) {
          const Floats inverse = Simd::all(units.inverse[i]);
          const auto scaled = [&](int v) __attribute__((always_inline)) {
            const Mask mask = Simd::mask(static_cast<std::uint16_t>(live[i] >> (v * 16)));
            return Simd::mul(mask, Simd::load(weight + i * 64 + v * 16), factor[v]) * inverse;
          };
          if constexpr (kSlotVectors == 1) {
            Simd::store_integers(n[group][i], scaled(0));
          } else {
            for (int v = 0; v < kSlotVectors; v += 2)
              Simd::store_integers(n[group][i] + v * 16, scaled(v), scaled(v + 1));
          }
        }
      }
    }

    // Adds to weighted[i][offset ..], of one group. Codes as of `products`.
    template <int kRow, int kFirst, int kVectors, class Source>
    [[gnu::always_inline]] void add(const Source& codes, int block, int stride, int group, int offset) const {
      Ints sum[kQueries][kVectors];
      products<kRow, kFirst, kVectors, kQueries>(codes, block, stride, kSlots / 2, n[group][0], kSlots, sum);
      for (int i = 0; i < kQueries; ++i) {
        if (live[i] == 0) continue;
        for (int v = 0; v < kVectors; ++v) {
          float* at = weighted[i] + offset + v * 16;
          const Floats more = Simd::fma(Simd::all(unit[i]), Simd::to_floats(sum[i][v]), Simd::all(low[group][i]));
          Simd::store(at, Simd::fma(Simd::load(at), Simd::all(keep[i]), more));
        }
      }
    }

    // Adds all groups; rows may have any number of vectors.
    template <class Source>
    [[gnu::always_inline]] void add_vectors(const Source& codes, int dims) const {
      for (int d = 0; d < dims; d += 16 * Simd::kVectors) {
        if (dims - d >= 16 * Simd::kVectors) {
          add<1, 0, Simd::kVectors>(codes, d / 16, dims / 16, d / kCodecGroup, d);
        } else {
          add<1, 0, 1>(codes, d / 16, dims / 16, d / kCodecGroup, d);
        }
      }
    }

    // Adds all groups; rows have kRow vectors.
    template <int kRow, class Source>
    [[gnu::always_inline]] void add_parts(const Source& codes) const {
      constexpr int kOfBlock = kRow < Source::kParts ? kRow : Source::kParts;
      unrolled<kRow / Simd::kVectors>([&](auto number) __attribute__((always_inline)) {
        constexpr int kVector = decltype(number)::value * Simd::kVectors;
        add<kOfBlock, kVector % kOfBlock, Simd::kVectors>(codes, kVector / kOfBlock, kRow / kOfBlock,
                                                          kVector * 16 / kCodecGroup, kVector * 16);
      });
    }
    template <class Source>
    [[gnu::always_inline]] void add_rows(const Source& codes, int row_vectors) const {
      if (row_vectors == 4) return add_parts<4>(codes);
      add_parts<8>(codes);
    }
  };

  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void add_values(const OpenSide& values, const SlotMask (&live)[kQueries],
                                                const float* weight, const float* keep,
                                                float* const (&weighted)[kQueries]) {
    const EncodedSide& side = values.side;
    const ScaledWeights<kSlotVectors, kQueries> scaled(side, live, weight, keep, weighted);
    const auto add_planes = [&]() __attribute__((always_inline)) {
      if constexpr (kSlotVectors == 2) {
        const int row_vectors = side.count / 16;
        switch (values.source) {
          case CodeSource::kPlane4: return scaled.add_rows(PlaneCodes<Simd, 4>{side.data}, row_vectors);
          case CodeSource::kPlane2: return scaled.add_rows(PlaneCodes<Simd, 2>{side.data}, row_vectors);
          default: return scaled.add_rows(ThreeBitCodes<Simd>{side.data, side.data + side.codes / 4}, row_vectors);
        }
      }
    };
    switch (values.source) {
      case CodeSource::kBytes: scaled.add_vectors(ByteCodes<Simd>{side.data}, side.count); break;
      case CodeSource::kWords: scaled.add_vectors(WordCodes<Simd>{values.codes}, side.count); break;
      default: add_planes();
    }
    SlotMask all = ~SlotMask{0};
    for (int i = 0; i < kQueries; ++i) all &= live[i];
    for (int o = 0; o < values.outliers; ++o) {
      const int slot = values.row[o];
      const int d = values.place[o];
      const float beyond = values.beyond[o];
      const auto add = [&](int i) __attribute__((always_inline)) {
        weighted[i][d] = __builtin_fmaf(weight[i * 64 + slot], beyond, weighted[i][d]);
      };
      if ((all >> slot & 1) != 0) {
        unrolled<kQueries>(add);
      } else {
        for (int i = 0; i < kQueries; ++i)
          if ((live[i] >> slot & 1) != 0) add(i);
      }
    }
  }

  template <int kSlotVectors, int kQueries>
  [[gnu::always_inline]] static void score_floats(const float* keys, int dim, const float* const (&from)[kQueries],
                                                  float* out) {
    alignas(64) float q[kMaxHeadDim * kQueries];
    Parts::transpose(from, dim, q);
    Floats score[kQueries][kSlotVectors];
    Parts::template page_scores<KvType::kF32, kSlotVectors>(reinterpret_cast<const std::byte*>(keys), dim, q, score);
    for (int i = 0; i < kQueries; ++i)
      for (int v = 0; v < kSlotVectors; ++v) Simd::store(out + i * 64 + v * 16, score[i][v]);
  }

  // One entry of a partial and kQueries of its queries from `first` on, the first of which is number `of_tile` of its
  // tile.
  template <int kSlotVectors, int kQueries>
  static void attend_entry(const AttentionPartial& partial, const AttentionState& state, const OpenPage& page, int e,
                           int first, int of_tile, PageFetch& fetch) {
    const QueryBlock<kQueries> block(partial, state, first);
    SlotMask live[kQueries];
    if (!block.live(e, live)) return;
    alignas(64) float score[kQueries * 64];
    alignas(64) float weight[kQueries * 64];
    alignas(16) float keep[kQueries];
    switch (page.keys.source) {
      case CodeSource::kPlain: score_floats<kSlotVectors>(page.keys.plain, partial.head_dim, block.q, score); break;
      case CodeSource::kBytes:
        score_q8<kSlotVectors, kQueries>(page.keys.side, page.queries.n[of_tile], page.queries.unit + of_tile, score);
        break;
      default: score_groups<kSlotVectors, kQueries>(page.keys, block.q, score);
    }
    fetch();
    Parts::template weigh_stored<kSlotVectors>(partial, state, first, block, e, live, score, weight, keep);
    fetch();
    if (page.values.source == CodeSource::kPlain) {
      Parts::template add_all_values<KvType::kF32>(reinterpret_cast<const std::byte*>(page.values.plain),
                                                   partial.head_dim, live, weight, keep, block.weighted);
    } else {
      add_values<kSlotVectors, kQueries>(page.values, live, weight, keep, block.weighted);
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
    const std::byte* first_page = partial.pages[0];
    const EncodedSide keys = encoded_keys(format, first_page);
    const EncodedSide values = encoded_values(format, first_page);
    page.keys.source = code_source<kSlotVectors>(format.key, true, kSlotVectors);
    page.values.source = code_source<kSlotVectors>(format.value, false, format.head_dim / 16);
    const std::size_t bytes = format.bytes();
    const int queries = partial.rows * partial.group;
    for (int tile = 0; tile < queries; tile += kTileQueries) {
      const int count = queries - tile < kTileQueries ? queries - tile : kTileQueries;
      if (format.key == KvType::kQ8) to_integers(partial, state, tile, count, page.queries);
      for (int e = 0; e < partial.entries; ++e) {
        const int ahead = tile == 0 && e + kPagesAhead < partial.entries ? e + kPagesAhead : e;
        PageFetch fetch(partial.pages[ahead], ahead == e ? 0 : bytes);
        fetch();
        if (!seen(partial, e)) continue;
        const auto open = [&](const EncodedSide& side, OpenSide& to) {
          if (to.source != CodeSource::kPlain) return Opener::open_side(side, first_page, partial.pages[e], to);
          Opener::open_plain(side.type, partial.pages[e] + (side.data - first_page), side.rows * side.count, to.plain);
        };
        open(keys, page.keys);
        open(values, page.values);
        Parts::template query_blocks<kSlotVectors>(count, [&]<int kQueries>(int first) {
          attend_entry<kSlotVectors, kQueries>(partial, state, page, e, tile + first, first, fetch);
        });
        fetch();
      }
    }
  }

  // A run of entries in one encoded format. REQUIRES: head_dim a multiple of 16.
  static void attend(const AttentionPartial& partial, const AttentionState& state) {
    Parts::with_slot_vectors(partial.slots, [&]<int kSlotVectors>() { attend_run<kSlotVectors>(partial, state); });
  }
};

}  // namespace
}  // namespace kvasir
