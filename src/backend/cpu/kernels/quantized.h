// Products with quantised weights, written once over vectors of kLanes outputs: a panel, or half of one. Internal to
// the translation unit that includes it: each table instantiates it with its own instructions (`Isa`), so that no code
// compiled for one is shared with code that runs without it.
//
// An opened block gives, for each part of 32 inputs, eight registers of unsigned bytes u <= kMost (four inputs of
// kLanes outputs each), and the terms that turn u into weights w. Where weights have eight bits (kMost is 255),
// Isa::eight_bits gives the operand of Isa::dot: u, or u - 128 if that multiplies signed bytes.
//   kOffset       w = scale * (u - offset)
//   kMinimum      w = scale * u - minimum
//   kHalfOffset   as kOffset, with a scale for each half of the part
//   kHalfMinimum  as kMinimum, with scale and minimum for each half
// Integer dot products are exact, and the sums of parts are fused multiply-adds in order: all tables give the same
// bits.
#pragma once

#include <cstring>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/prefetch.h"
#include "backend/cpu/kernels/quantized_layout.h"
#include "tensor/dequantize.h"

namespace kvasir {
namespace {

#ifdef KVASIR_HALF_PANELS
constexpr int kLanes = kPanel / 2;
#else
constexpr int kLanes = kPanel;
#endif
using Words = std::uint32_t __attribute__((vector_size(kLanes * 4)));
using Ints = std::int32_t __attribute__((vector_size(kLanes * 4)));
using Floats = float __attribute__((vector_size(kLanes * 4)));

// How far ahead weights are fetched: two pages of 4 KiB, where the hardware's own prefetching stops at each.
constexpr int kPrefetchBytes = 8192;

enum class Terms { kOffset, kMinimum, kHalfOffset, kHalfMinimum };
struct BlockTerms {
  DType type = DType::kF32;
  Terms terms = Terms::kOffset;
  int most = 0;
  int offset = 0;
};
// The terms of each type, with its kMost and offset.
inline constexpr BlockTerms kBlockTerms[] = {
    {DType::kQ8_0, Terms::kOffset, 255, 128},   {DType::kQ4_0, Terms::kOffset, 15, 8},
    {DType::kIQ4_NL, Terms::kOffset, 255, 128}, {DType::kQ4_1, Terms::kMinimum, 15},
    {DType::kQ5_0, Terms::kOffset, 31, 16},     {DType::kQ5_1, Terms::kMinimum, 31},
    {DType::kQ4_K, Terms::kMinimum, 15},        {DType::kQ5_K, Terms::kMinimum, 31},
    {DType::kQ6_K, Terms::kHalfOffset, 63, 32}, {DType::kQ3_K, Terms::kHalfOffset, 7, 4},
    {DType::kQ2_K, Terms::kHalfMinimum, 3},     {DType::kIQ4_XS, Terms::kOffset, 255, 128},
};
constexpr const BlockTerms& block_terms(DType type) {
  const BlockTerms* of = kBlockTerms;
  while (of->type != type) ++of;
  return *of;
}

[[gnu::always_inline]] inline Words load_words(const std::byte* p, int word) {
  Words words;
  std::memcpy(&words, p + word * kPanel * 4, sizeof words);
  return words;
}

[[gnu::always_inline]] inline Floats to_floats(Words words) {
  return __builtin_convertvector(reinterpret_cast<Ints>(words), Floats);
}

// Byte `index` of every word.
[[gnu::always_inline]] inline Words byte_of(Words words, int index) {
  return words >> (8 * index) & 255;
}

// Opens a block of 32 nibbles, as Q4_0 and others have them, to eight registers.
[[gnu::always_inline]] inline void nibbles(const std::byte* quants, Words* w) {
  for (int g = 0; g < 4; ++g) {
    const Words both = load_words(quants, g);
    w[g] = both & 0x0f0f0f0f;
    w[g + 4] = both >> 4 & 0x0f0f0f0f;
  }
}

template <DType kType>
struct Layout {
  static constexpr const QuantizedLayout& kLayout = *quantized_layout(kType);
  static constexpr int kParts = kLayout.inputs / kQ8Block;
  static constexpr Terms kTerms = block_terms(kType).terms;
  static constexpr int kMost = block_terms(kType).most;
  static constexpr int kOffset = block_terms(kType).offset;

  // Refers to the block's outputs from `first` on.
  Layout(const std::byte* words, const std::byte* halves, int first)
      : p(words + first * 4), halves_(halves + first * 2) {}
  const std::byte* field(std::size_t index) const { return p + kLayout.first_word(index) * kPanel * 4; }
  const std::byte* half_field(std::size_t index) const { return halves_ + index * kPanel * 2; }

  const std::byte* p;  // words

 private:
  const std::byte* halves_;
};

template <class Isa, DType kType>
struct Block;

// A block of one part, with its scale in the first half field and, where there is one, its minimum in the second.
template <class Isa, DType kType>
struct OnePart : Layout<kType> {
  using Layout<kType>::Layout;

  [[gnu::always_inline]] Floats scale(int, int) const { return Isa::halves(this->half_field(0)); }
  [[gnu::always_inline]] Floats minus_minimum(int, int) const { return Isa::halves(this->half_field(1)); }
};

template <class Isa>
struct Block<Isa, DType::kQ8_0> : OnePart<Isa, DType::kQ8_0> {
  using OnePart<Isa, DType::kQ8_0>::OnePart;

  [[gnu::always_inline]] void weights(int, Words* w) const {
    for (int g = 0; g < 8; ++g) w[g] = Isa::eight_bits(load_words(this->p, g));
  }
};

template <class Isa>
struct Block<Isa, DType::kQ4_0> : OnePart<Isa, DType::kQ4_0> {
  using OnePart<Isa, DType::kQ4_0>::OnePart;

  [[gnu::always_inline]] void weights(int, Words* w) const { nibbles(this->p, w); }
};

template <class Isa>
struct Block<Isa, DType::kIQ4_NL> : OnePart<Isa, DType::kIQ4_NL> {
  using OnePart<Isa, DType::kIQ4_NL>::OnePart;

  [[gnu::always_inline]] void weights(int, Words* w) const {
    nibbles(this->p, w);
    for (int g = 0; g < 8; ++g) w[g] = Isa::iq4_values(w[g]);
  }
};

template <class Isa>
struct Block<Isa, DType::kQ4_1> : OnePart<Isa, DType::kQ4_1> {
  using OnePart<Isa, DType::kQ4_1>::OnePart;

  [[gnu::always_inline]] void weights(int, Words* w) const { nibbles(this->p, w); }
};

// Nibbles, and the grouped high bits in front of them: Q5_0 and Q5_1.
template <class Isa, DType kType>
struct FiveBits : OnePart<Isa, kType> {
  using OnePart<Isa, kType>::OnePart;

  [[gnu::always_inline]] void weights(int, Words* w) const {
    nibbles(this->field(1), w);
    const Words high = load_words(this->p, 0);
    for (int g = 0; g < 8; ++g) w[g] |= (g < 4 ? high << (4 - g) : high >> (g - 4)) & 0x10101010;
  }
};

template <class Isa>
struct Block<Isa, DType::kQ5_0> : FiveBits<Isa, DType::kQ5_0> {
  using FiveBits<Isa, DType::kQ5_0>::FiveBits;
};

template <class Isa>
struct Block<Isa, DType::kQ5_1> : FiveBits<Isa, DType::kQ5_1> {
  using FiveBits<Isa, DType::kQ5_1>::FiveBits;
};

// The scales and minima of Q4_K and Q5_K: bytes of parts 0 to 3 and 4 to 7.
template <class Isa, DType kType>
struct SixBitScales : Layout<kType> {
  [[gnu::always_inline]] SixBitScales(const std::byte* words, const std::byte* halves, int first)
      : Layout<kType>(words, halves, first) {
    const Words a = load_words(this->p, 0);
    const Words b = load_words(this->p, 1);
    const Words c = load_words(this->p, 2);
    scales[0] = a & 0x3f3f3f3f;
    scales[1] = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
    minima[0] = b & 0x3f3f3f3f;
    minima[1] = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
    scale_of_scales = Isa::halves(this->half_field(0));
    scale_of_minima = -Isa::halves(this->half_field(1));
  }
  [[gnu::always_inline]] Floats scale(int part, int) const {
    return scale_of_scales * to_floats(byte_of(scales[part / 4], part % 4));
  }
  [[gnu::always_inline]] Floats minus_minimum(int part, int) const {
    return scale_of_minima * to_floats(byte_of(minima[part / 4], part % 4));
  }

  Words scales[2], minima[2];
  Floats scale_of_scales, scale_of_minima;
};

template <class Isa>
struct Block<Isa, DType::kQ4_K> : SixBitScales<Isa, DType::kQ4_K> {
  using SixBitScales<Isa, DType::kQ4_K>::SixBitScales;

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    const std::byte* quants = this->field(1);
    for (int g = 0; g < 8; ++g) w[g] = load_words(quants, part / 2 * 8 + g) >> (part % 2 * 4) & 0x0f0f0f0f;
  }
};

template <class Isa>
struct Block<Isa, DType::kQ5_K> : SixBitScales<Isa, DType::kQ5_K> {
  using SixBitScales<Isa, DType::kQ5_K>::SixBitScales;

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    for (int g = 0; g < 8; ++g) {
      const Words low = load_words(this->field(2), part / 2 * 8 + g) >> (part % 2 * 4) & 0x0f0f0f0f;
      const Words high = load_words(this->field(1), g);
      w[g] = low | ((part < 4 ? high << (4 - part) : high >> (part - 4)) & 0x10101010);
    }
  }
};

template <class Isa>
struct Block<Isa, DType::kQ6_K> : Layout<DType::kQ6_K> {
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* halves, int first)
      : Layout(words, halves, first), scale_of_scales(Isa::halves(this->half_field(0))) {}

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    for (int g = 0; g < 8; ++g) {
      const Words low = load_words(this->p, part / 4 * 16 + part % 2 * 8 + g) >> (part / 2 % 2 * 4) & 0x0f0f0f0f;
      const Words high = load_words(this->field(1), part / 4 * 8 + g) >> (part % 4 * 2) & 0x03030303;
      w[g] = low | high << 4;
    }
  }
  [[gnu::always_inline]] Floats scale(int part, int half) const {
    const int index = part * 2 + half;
    const auto bytes = reinterpret_cast<Ints>(load_words(this->field(2), index / 4));
    return scale_of_scales * __builtin_convertvector(bytes << (24 - index % 4 * 8) >> 24, Floats);
  }

  Floats scale_of_scales;
};

template <class Isa>
struct Block<Isa, DType::kQ3_K> : Layout<DType::kQ3_K> {
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* halves, int first)
      : Layout(words, halves, first), scale_of_scales(Isa::halves(this->half_field(0))) {
    const Words a = load_words(this->field(2), 0);
    const Words b = load_words(this->field(2), 1);
    const Words c = load_words(this->field(2), 2);
    scales[0] = (a & 0x0f0f0f0f) | (c & 0x03030303) << 4;
    scales[1] = (b & 0x0f0f0f0f) | (c >> 2 & 0x03030303) << 4;
    scales[2] = (a >> 4 & 0x0f0f0f0f) | (c >> 4 & 0x03030303) << 4;
    scales[3] = (b >> 4 & 0x0f0f0f0f) | (c >> 6 & 0x03030303) << 4;
  }

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    for (int g = 0; g < 8; ++g) {
      const Words low = load_words(this->field(1), part / 4 * 8 + g) >> (part % 4 * 2) & 0x03030303;
      const Words high = load_words(this->p, g) >> part & 0x01010101;
      w[g] = low | high << 2;
    }
  }
  [[gnu::always_inline]] Floats scale(int part, int half) const {
    const int index = part * 2 + half;
    return scale_of_scales * (to_floats(byte_of(scales[index / 4], index % 4)) - 32.0F);
  }

  Words scales[4];
  Floats scale_of_scales;
};

template <class Isa>
struct Block<Isa, DType::kQ2_K> : Layout<DType::kQ2_K> {
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* halves, int first)
      : Layout(words, halves, first),
        scale_of_scales(Isa::halves(this->half_field(0))),
        scale_of_minima(-Isa::halves(this->half_field(1))) {}

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    for (int g = 0; g < 8; ++g) w[g] = load_words(this->field(1), part / 4 * 8 + g) >> (part % 4 * 2) & 0x03030303;
  }
  [[gnu::always_inline]] Words both(int part, int half) const {
    const int index = part * 2 + half;
    return byte_of(load_words(this->p, index / 4), index % 4);
  }
  [[gnu::always_inline]] Floats scale(int part, int half) const {
    return scale_of_scales * to_floats(both(part, half) & 15);
  }
  [[gnu::always_inline]] Floats minus_minimum(int part, int half) const {
    return scale_of_minima * to_floats(both(part, half) >> 4);
  }

  Floats scale_of_scales, scale_of_minima;
};

template <class Isa>
struct Block<Isa, DType::kIQ4_XS> : Layout<DType::kIQ4_XS> {
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* halves, int first)
      : Layout(words, halves, first),
        low_bits(load_words(this->p, 0)),
        high_bits(Isa::shorts(this->half_field(1))),
        scale_of_scales(Isa::halves(this->half_field(0))) {}

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    nibbles(this->field(1) + part * 4 * 64, w);
    for (int g = 0; g < 8; ++g) w[g] = Isa::iq4_values(w[g]);
  }
  [[gnu::always_inline]] Floats scale(int part, int) const {
    const Words bits = (low_bits >> (part * 4) & 15) | (high_bits >> (part * 2) & 3) << 4;
    return scale_of_scales * (to_floats(bits) - 32.0F);
  }

  Words low_bits, high_bits;
  Floats scale_of_scales;
};

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

// Adds one row's products with a part. kShift turns -128 * sum into the -offset * sum that cancels the offset of u.
template <class Isa, class B, class Fetch>
[[gnu::always_inline]] inline Floats add_part(const Words* w, const Floats* scale, const Floats* minus_minimum,
                                              const Q8Rows& x, Floats total, const Fetch& fetch) {
  static_assert(B::kMost <= 63 || B::kTerms == Terms::kOffset);  // AVX2 takes the former signed
  if constexpr (B::kTerms == Terms::kOffset) {
    static_assert(B::kMost <= 63 || B::kOffset == 128);
    constexpr int kShift = __builtin_ctz(128 / B::kOffset);
    const Ints dot = Isa::template dot<0, 8, B::kMost>(broadcast(*x.sum >> kShift), w, x.quants, fetch);
    return Isa::fma(__builtin_convertvector(dot, Floats), scale[0] * broadcast(*x.scale), total);
  } else if constexpr (B::kTerms == Terms::kMinimum) {
    const Ints dot = Isa::template dot<0, 8, B::kMost>(Ints{}, w, x.quants, fetch);
    total = Isa::fma(__builtin_convertvector(dot, Floats), scale[0] * broadcast(*x.scale), total);
    return Isa::fma(minus_minimum[0], broadcast(*x.scaled_sum), total);
  } else {
    Ints start[2]{};
    if constexpr (B::kTerms == Terms::kHalfOffset)
      for (int half = 0; half < 2; ++half) start[half] = broadcast(x.half_sum[half] >> __builtin_ctz(128 / B::kOffset));
    const Ints dot[2] = {Isa::template dot<0, 4, B::kMost>(start[0], w, x.quants, fetch),
                         Isa::template dot<4, 4, B::kMost>(start[1], w, x.quants, fetch)};
    Floats sum = __builtin_convertvector(dot[0], Floats) * scale[0];
    sum = Isa::fma(__builtin_convertvector(dot[1], Floats), scale[1], sum);
    if constexpr (B::kTerms == Terms::kHalfMinimum)
      for (int half = 0; half < 2; ++half)
        sum = Isa::fma(minus_minimum[half], broadcast(static_cast<float>(x.half_sum[half]) * (-1.0F / 128)), sum);
    return Isa::fma(sum, broadcast(*x.scale), total);
  }
}

// `rows` rows of one group against one panel, in one pass over its weights. Each part is opened once and multiplied
// with all rows. A loop over rows, with their sums in the nearest cache, is as fast as an unrolled tile for each number
// of rows, at a fraction of the code.
template <class Isa, DType kType>
void quantized_tile(const PackedMatrix& weights, int panel, Q8Rows x, int rows, float* out, std::size_t out_stride) {
  using B = Block<Isa, kType>;
  constexpr std::size_t kBlockBytes = B::kLayout.panel_block_bytes();
  constexpr int kPartBytes = static_cast<int>(kBlockBytes) / B::kParts;
  const int blocks = weights.inputs / B::kLayout.inputs;
  const std::byte* p = weights.data + static_cast<std::size_t>(panel) * static_cast<std::size_t>(blocks) * kBlockBytes;
  constexpr int kVectors = kPanel / kLanes;
  Floats total[kVectors][kRowGroup];
  for (auto& of_vector : total)
    for (Floats& t : of_vector) t = Floats{};
  const std::byte* words = p;
  const std::byte* halves = p;
  for (int b = 0; b < blocks; ++b, p += kBlockBytes) {
    // Follows place() step by step: calling it took a tenth of the time of four rows.
    if (B::kLayout.lies_in_pairs() && b % 2 != 0) {
      halves += kPanel * 2;
    } else {
      words = p;
      halves = p + (B::kLayout.lies_in_pairs() && b + 1 < blocks ? 2 : 1) * B::kLayout.word_bytes();
    }
    for (int v = 0; v < kVectors; ++v) {
      const B block(words, halves, v * kLanes);
#pragma GCC unroll 8
      for (int part = 0; part < B::kParts; ++part) {
        Words w[8];
        block.weights(part, w);
        constexpr bool kHalves = B::kTerms == Terms::kHalfOffset || B::kTerms == Terms::kHalfMinimum;
        constexpr bool kMinima = B::kTerms == Terms::kMinimum || B::kTerms == Terms::kHalfMinimum;
        Floats scale[2];
        Floats minus_minimum[2];
        for (int half = 0; half <= (kHalves ? 1 : 0); ++half) {
          scale[half] = block.scale(part, half);
          if constexpr (kMinima) minus_minimum[half] = block.minus_minimum(part, half);
        }
        const Q8Rows of_part = x.at(static_cast<std::size_t>(part * kRowGroup));
        const auto add = [&](const Q8Rows& row, Floats& sum, const auto& fetch) {
          sum = add_part<Isa, B>(w, scale, minus_minimum, row, sum, fetch);
        };
        std::size_t r = 0;
        if constexpr (Isa::kFetches) {
          if (v == 0)
            add(of_part, total[v][r], Prefetches<(kPartBytes + 63) / 64>{p + part * kPartBytes + kPrefetchBytes});
          else
            add(of_part, total[v][r], NoPrefetches{});
          r = 1;
        }
        for (; r < static_cast<std::size_t>(rows); ++r) add(of_part.at(r), total[v][r], NoPrefetches{});
      }
    }
    words += B::kLayout.word_bytes();
    x = x.at(static_cast<std::size_t>(B::kParts * kRowGroup));
  }
  for (int v = 0; v < kVectors; ++v) {
    const int left = weights.outputs - panel * kPanel - v * kLanes;
    if (left <= 0) break;
    const std::size_t bytes = static_cast<std::size_t>(left < kLanes ? left : kLanes) * sizeof(float);
    for (int r = 0; r < rows; ++r)
      std::memcpy(out + static_cast<std::size_t>(r) * out_stride + panel * kPanel + v * kLanes, &total[v][r], bytes);
  }
}

template <class Isa, DType kType>
void quantized_panels(const PackedMatrix& weights, const Activations& x, int panel_begin, int panel_end, float* out,
                      std::size_t out_stride) {
  const auto blocks = static_cast<std::size_t>(weights.inputs / kQ8Block);
  for (int panel = panel_begin; panel < panel_end; ++panel)
    for (int row = 0; row < x.rows; row += kRowGroup)
      quantized_tile<Isa, kType>(weights, panel, x.q8.at(static_cast<std::size_t>(row) * blocks),
                                 x.rows - row < kRowGroup ? x.rows - row : kRowGroup,
                                 out + static_cast<std::size_t>(row) * out_stride, out_stride);
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
