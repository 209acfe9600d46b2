// Products with quantised weights, written once over opened blocks (quantized_blocks.h, grid_blocks.h). Internal to the
// translation unit that includes it: each table instantiates it with its own instructions (`Isa`), so that no code
// compiled for one is shared with code that runs without it.
//
// Integer dot products are exact, and the sums of parts are fused multiply-adds in order: all tables give the same
// bits.
#pragma once

#include <cstring>

#include "backend/cpu/kernels/grid_blocks.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/prefetch.h"
#include "backend/cpu/kernels/quantized_blocks.h"

namespace kvasir {
namespace {

// How far ahead weights are fetched: two pages of 4 KiB, where the hardware's own prefetching stops at each.
constexpr int kPrefetchBytes = 8192;

[[gnu::always_inline]] inline Ints broadcast(std::int32_t value) {
  return value - Ints{};
}
[[gnu::always_inline]] inline Floats broadcast(float value) {
  return value - Floats{};
}

// Fetches kLines lines of weights from `at` on, some before each of the eight steps of a product of 32 inputs. May run
// past the end of the matrix.
template <int kLines>
struct Prefetches {
  template <int kStep>
  [[gnu::always_inline]] void before() const {
    constexpr int kFirst = kStep * kLines / 8;
    constexpr int kCount = (kStep + 1) * kLines / 8 - kFirst;
    static_assert(kCount <= 2);
    if constexpr (kCount >= 1) prefetch(at + kFirst * 64);
    if constexpr (kCount >= 2) prefetch(at + kFirst * 64 + 64);
  }

  const std::byte* at;
};
struct NoPrefetches {
  template <int /*kStep*/>
  [[gnu::always_inline]] void before() const {}
};

// Returns what the sum of a part's products begins with: -offset * sum of the inputs, which cancels the offset of u.
// half: the one that is summed, under kHalfOffset.
template <class B>
[[gnu::always_inline]] inline Ints start_of(const Q8Rows& x, int half) {
  constexpr int kShift = B::kOffset > 0 ? __builtin_ctz(128 / B::kOffset) : 0;
  if constexpr (B::kTerms == Terms::kOffset) return broadcast(*x.sum >> kShift);
  if constexpr (B::kTerms == Terms::kHalfOffset) return broadcast(x.half_sum[half] >> kShift);
  return Ints{};
}

template <class B>
inline constexpr bool kHalves = B::kTerms == Terms::kHalfOffset || B::kTerms == Terms::kHalfMinimum;

// Adds a part to a row's total. dot: the sums of its products, or of those of each half.
template <class Isa, class B>
[[gnu::always_inline]] inline Floats add_sums(const Ints* dot, const Floats* scale, const Floats* minus_minimum,
                                              const Q8Rows& x, Floats total) {
  if constexpr (!kHalves<B>) {
    total = Isa::fma(__builtin_convertvector(dot[0], Floats), scale[0] * broadcast(*x.scale), total);
    if constexpr (B::kTerms == Terms::kMinimum) total = Isa::fma(minus_minimum[0], broadcast(*x.scaled_sum), total);
    return total;
  } else {
    Floats sum = __builtin_convertvector(dot[0], Floats) * scale[0];
    sum = Isa::fma(__builtin_convertvector(dot[1], Floats), scale[1], sum);
    if constexpr (B::kTerms == Terms::kHalfMinimum)
      for (int half = 0; half < 2; ++half)
        sum = Isa::fma(minus_minimum[half], broadcast(static_cast<float>(x.half_sum[half]) * (-1.0F / 128)), sum);
    return Isa::fma(sum, broadcast(*x.scale), total);
  }
}

// Adds one row's products with a part.
template <class Isa, class B, class Fetch>
[[gnu::always_inline]] inline Floats add_part(const Words* w, const Floats* scale, const Floats* minus_minimum,
                                              const Q8Rows& x, Floats total, const Fetch& fetch) {
  // AVX2 takes eight bits signed, and sums of two products of others with 127 fit 16 bits.
  static_assert(B::kMost <= 129 || (B::kTerms == Terms::kOffset && B::kOffset == 128));
  if constexpr (kHalves<B>) {
    const Ints dot[2] = {Isa::template dot<0, 4, B::kMost>(start_of<B>(x, 0), w, x.quants, fetch),
                         Isa::template dot<4, 4, B::kMost>(start_of<B>(x, 1), w, x.quants, fetch)};
    return add_sums<Isa, B>(dot, scale, minus_minimum, x, total);
  } else {
    const Ints dot = Isa::template dot<0, 8, B::kMost>(start_of<B>(x, 0), w, x.quants, fetch);
    return add_sums<Isa, B>(&dot, scale, minus_minimum, x, total);
  }
}

// Walks the blocks of a panel. Follows place() step by step: calling it took a tenth of the time of four rows.
template <class B>
class PanelBlocks {
 public:
  static constexpr std::size_t kBlockBytes = B::kLayout.panel_block_bytes();
  static constexpr int kPartBytes = static_cast<int>(kBlockBytes) / B::kParts;

  [[gnu::always_inline]] PanelBlocks(const PackedMatrix& weights, int panel)
      : count_(weights.inputs / B::kLayout.inputs),
        start_(weights.data + static_cast<std::size_t>(panel) * static_cast<std::size_t>(count_) * kBlockBytes),
        words_(start_),
        tail_(start_) {}

  [[gnu::always_inline]] bool next() {
    constexpr int kTogether = B::kLayout.together();
    if (++number_ >= count_) return false;
    if (number_ > 0) start_ += kBlockBytes;
    if (number_ % kTogether != 0) {
      words_ += B::kLayout.word_bytes();
      tail_ += kPanel * B::kLayout.tail_bytes();
    } else {
      const int left = count_ - number_;
      words_ = start_;
      tail_ = start_ + static_cast<std::size_t>(left < kTogether ? left : kTogether) * B::kLayout.word_bytes();
    }
    return true;
  }
  // The outputs of one vector.
  [[gnu::always_inline]] B block(int vector) const { return B(words_, tail_, vector * kLanes); }
  // Fetches as much as a block takes.
  [[gnu::always_inline]] void fetch_ahead() const {
    for (std::size_t line = 0; line < kBlockBytes; line += 64) prefetch(start_ + kPrefetchBytes + line);
  }
  [[gnu::always_inline]] auto fetch(int part) const {
    return Prefetches<(kPartBytes + 63) / 64>{start_ + part * kPartBytes + kPrefetchBytes};
  }

 private:
  int count_;
  int number_ = -1;
  const std::byte* start_;
  const std::byte* words_;
  const std::byte* tail_;
};

constexpr int kVectors = kPanel / kLanes;

template <class B>
struct PartScales {
  PartScales() = default;
  [[gnu::always_inline]] PartScales(const B& block, int part) {
    constexpr bool kMinima = B::kTerms == Terms::kMinimum || B::kTerms == Terms::kHalfMinimum;
    for (int half = 0; half <= (kHalves<B> ? 1 : 0); ++half) {
      scale[half] = block.scale(part, half);
      if constexpr (kMinima) minus_minimum[half] = block.minus_minimum(part, half);
    }
  }

  Floats scale[2];
  Floats minus_minimum[2];
};

inline void write_outputs(const PackedMatrix& weights, int panel, int vector, const Floats& total, float* out) {
  const int first = panel * kPanel + vector * kLanes;
  const int left = weights.outputs - first;
  if (left >= kLanes) {
    std::memcpy(out + first, &total, sizeof total);
  } else if (left > 0) {
    std::memcpy(out + first, &total, static_cast<std::size_t>(left) * sizeof(float));
  }
}

// `rows` rows of one group against one panel, in one pass over its weights. Each part is opened once and multiplied
// with all rows. A loop over rows, with their sums in the nearest cache, is as fast as an unrolled tile for each number
// of rows, at a fraction of the code.
template <class Isa, DType kType>
void quantized_tile(const PackedMatrix& weights, int panel, Q8Rows x, int rows, float* out, std::size_t out_stride) {
  using B = Block<Isa, kType>;
  Floats total[kVectors][kRowGroup];
  for (auto& of_vector : total)
    for (Floats& t : of_vector) t = Floats{};
  for (PanelBlocks<B> blocks(weights, panel); blocks.next(); x = x.at(static_cast<std::size_t>(B::kParts * kRowGroup)))
    for (int v = 0; v < kVectors; ++v) {
      const B block = blocks.block(v);
#pragma GCC unroll 8
      for (int part = 0; part < B::kParts; ++part) {
        Words w[8];
        block.weights(part, w);
        const PartScales<B> scales(block, part);
        const Q8Rows of_part = x.at(static_cast<std::size_t>(part * kRowGroup));
        const auto add = [&](const Q8Rows& row, Floats& sum, const auto& fetch) {
          sum = add_part<Isa, B>(w, scales.scale, scales.minus_minimum, row, sum, fetch);
        };
        std::size_t r = 0;
        if constexpr (Isa::kFetches) {
          if (v == 0)
            add(of_part, total[v][r], blocks.fetch(part));
          else
            add(of_part, total[v][r], NoPrefetches{});
          r = 1;
        }
        for (; r < static_cast<std::size_t>(rows); ++r) add(of_part.at(r), total[v][r], NoPrefetches{});
      }
    }
  for (int v = 0; v < kVectors; ++v)
    for (int r = 0; r < rows; ++r)
      write_outputs(weights, panel, v, total[v][r], out + static_cast<std::size_t>(r) * out_stride);
}

// A part of a panel, opened.
template <class Isa, class B>
struct OpenPart {
  [[gnu::always_inline]] void open(const B& block, int part) {
    block.weights(part, w);
    scales = PartScales<B>(block, part);
  }

  Words w[8];
  PartScales<B> scales;
};

// Adds the products of kRows rows with a part of two panels to their totals, [2][first ..]. Their sums go on side by
// side, so that a product need not wait for the one before, and inputs are loaded once for both panels.
template <class Isa, class B, int kRows>
[[gnu::always_inline]] inline void add_rows(const OpenPart<Isa, B>* parts, const Q8Rows& x, Floats (*total)[kRowGroup],
                                            std::size_t first) {
  constexpr int kSums = kHalves<B> ? 2 : 1;
  Ints dot[2][kRows][kSums];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int half = 0; half < kSums; ++half)
      dot[0][r][half] = dot[1][r][half] = start_of<B>(x.at(static_cast<std::size_t>(r)), half);
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g)
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Ints inputs = Isa::four_inputs_of(x.quants + r * kQ8Block + g * 4);
#pragma GCC unroll 2
      for (int p = 0; p < 2; ++p) {
        Ints& sum = dot[p][r][kSums == 2 ? g / 4 : 0];
        sum = Isa::add_product(sum, parts[p].w[g], inputs);
      }
    }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      Floats& sum = total[p][first + static_cast<std::size_t>(r)];
      sum = add_sums<Isa, B>(dot[p][r], parts[p].scales.scale, parts[p].scales.minus_minimum,
                             x.at(static_cast<std::size_t>(r)), sum);
    }
}

// As quantized_tile, of two panels. Blocks are opened whole, into the nearest cache where they have several parts, and
// multiplied with Isa::kRowsAtOnce rows at a time. fetches: the weights are not in a cache yet.
template <class Isa, DType kType>
void quantized_pair(const PackedMatrix& weights, int panel, Q8Rows x, int rows, bool fetches, float* out,
                    std::size_t out_stride) {
  using B = Block<Isa, kType>;
  static_assert(Isa::kRowsAtOnce > 1 && kVectors == 1);
  Floats total[2][kRowGroup];
  for (auto& of_panel : total)
    for (Floats& t : of_panel) t = Floats{};
  PanelBlocks<B> blocks[2] = {{weights, panel}, {weights, panel + 1}};
  OpenPart<Isa, B> parts[B::kParts][2];
  while (blocks[0].next() && blocks[1].next()) {
    for (int p = 0; p < 2; ++p) {
      if (fetches) blocks[p].fetch_ahead();
      const B block = blocks[p].block(0);
#pragma GCC unroll 8
      for (int part = 0; part < B::kParts; ++part) parts[part][p].open(block, part);
    }
#pragma GCC unroll 1
    for (int part = 0; part < B::kParts; ++part, x = x.at(kRowGroup)) {
      std::size_t r = 0;
      for (; r + Isa::kRowsAtOnce <= static_cast<std::size_t>(rows); r += Isa::kRowsAtOnce)
        add_rows<Isa, B, Isa::kRowsAtOnce>(parts[part], x.at(r), total, r);
      for (; r < static_cast<std::size_t>(rows); ++r) add_rows<Isa, B, 1>(parts[part], x.at(r), total, r);
    }
  }
  for (int p = 0; p < 2; ++p)
    for (int r = 0; r < rows; ++r)
      write_outputs(weights, panel + p, 0, total[p][r], out + static_cast<std::size_t>(r) * out_stride);
}

// The same for one row, whose weights are multiplied as they are opened and whose sums stay in registers.
template <class Isa, DType kType>
void quantized_row(const PackedMatrix& weights, int panel, Q8Rows x, float* out) {
  using B = Block<Isa, kType>;
  static_assert(B::kParts > 0 && kVectors <= 2);
  Floats total[kVectors] = {};
  for (PanelBlocks<B> blocks(weights, panel); blocks.next();
       x = x.at(static_cast<std::size_t>(B::kParts * kRowGroup))) {
    const B block[2] = {blocks.block(0), blocks.block(kVectors - 1)};
#pragma GCC unroll 8
    for (int part = 0; part < B::kParts; ++part) {
      // With half panels, words that hold several parts are loaded again for each: otherwise they are kept, on the
      // stack.
      if constexpr (kVectors == 2) asm volatile("" : : : "memory");
      const Q8Rows row = x.at(static_cast<std::size_t>(part * kRowGroup));
      const auto add = [&](int v, const auto& fetch) {
        Words w[8];
        block[v].weights(part, w);
        const PartScales<B> scales(block[v], part);
        total[v] = add_part<Isa, B>(w, scales.scale, scales.minus_minimum, row, total[v], fetch);
      };
      add(0, blocks.fetch(part));
      if constexpr (kVectors == 2) add(1, NoPrefetches{});
    }
  }
  for (int v = 0; v < kVectors; ++v) write_outputs(weights, panel, v, total[v], out);
}

template <class Isa, DType kType>
void quantized_panels(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                      std::size_t out_stride) {
  const auto blocks = static_cast<std::size_t>(weights.inputs / kQ8Block);
  if constexpr (Isa::kFetches)
    if (x.rows == 1) {
      for (int panel = panel_begin; panel < panel_end; ++panel) quantized_row<Isa, kType>(weights, panel, x.q8, out);
      return;
    }
  // A group of rows stays in the first cache while it is multiplied with panels that stay in the second.
  constexpr std::size_t kTogetherBytes = 128 * 1024;
  const int together = 1 + static_cast<int>(kTogetherBytes / weights.panel_bytes());
  for (int first = panel_begin; first < panel_end; first += together) {
    const int end = panel_end - first < together ? panel_end : first + together;
    for (int row = 0; row < x.rows; row += kRowGroup) {
      const Q8Rows group = x.q8.at(static_cast<std::size_t>(row) * blocks);
      const int rows = x.rows - row < kRowGroup ? x.rows - row : kRowGroup;
      float* const to = out + static_cast<std::size_t>(row) * out_stride;
      int panel = first;
      if constexpr (Isa::kRowsAtOnce > 1)
        if (rows >= Isa::kRowsAtOnce)
          for (; panel + 2 <= end; panel += 2)
            quantized_pair<Isa, kType>(weights, panel, group, rows, row == 0, to, out_stride);
      for (; panel < end; ++panel) quantized_tile<Isa, kType>(weights, panel, group, rows, to, out_stride);
    }
  }
}

// Calls f.operator()<type>(). REQUIRES: a quantised type.
template <class F>
[[gnu::always_inline]] inline void with_quantized_type(DType type, const F& f) {
  switch (type) {
    case DType::kQ4_0: return f.template operator()<DType::kQ4_0>();
    case DType::kQ4_1: return f.template operator()<DType::kQ4_1>();
    case DType::kQ5_0: return f.template operator()<DType::kQ5_0>();
    case DType::kQ5_1: return f.template operator()<DType::kQ5_1>();
    case DType::kQ8_0: return f.template operator()<DType::kQ8_0>();
    case DType::kQ2_K: return f.template operator()<DType::kQ2_K>();
    case DType::kQ3_K: return f.template operator()<DType::kQ3_K>();
    case DType::kQ4_K: return f.template operator()<DType::kQ4_K>();
    case DType::kQ5_K: return f.template operator()<DType::kQ5_K>();
    case DType::kQ6_K: return f.template operator()<DType::kQ6_K>();
    case DType::kIQ4_NL: return f.template operator()<DType::kIQ4_NL>();
    case DType::kIQ4_XS: return f.template operator()<DType::kIQ4_XS>();
    case DType::kIQ2_XXS: return f.template operator()<DType::kIQ2_XXS>();
    case DType::kIQ2_XS: return f.template operator()<DType::kIQ2_XS>();
    case DType::kIQ2_S: return f.template operator()<DType::kIQ2_S>();
    case DType::kIQ3_XXS: return f.template operator()<DType::kIQ3_XXS>();
    case DType::kIQ3_S: return f.template operator()<DType::kIQ3_S>();
    case DType::kIQ1_S: return f.template operator()<DType::kIQ1_S>();
    case DType::kIQ1_M: return f.template operator()<DType::kIQ1_M>();
    case DType::kTQ1_0: return f.template operator()<DType::kTQ1_0>();
    case DType::kTQ2_0: return f.template operator()<DType::kTQ2_0>();
    case DType::kMXFP4: return f.template operator()<DType::kMXFP4>();
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: break;
  }
}

// REQUIRES: quantised weights.
template <class Isa>
void quantized_matmul(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                      std::size_t out_stride) {
  with_quantized_type(weights.type, [&]<DType kType>() {
    quantized_panels<Isa, kType>(weights, x, panel_begin, panel_end, out, out_stride);
  });
}

}  // namespace
}  // namespace kvasir
