// Packed blocks of quantised weights, opened: what quantized.h multiplies. Internal to the translation unit that
// includes it. Written over vectors of kLanes outputs: a panel, or half of one.
//
// An opened block gives, for each part of 32 inputs, eight registers of unsigned bytes u <= kMost (four inputs of
// kLanes outputs each), and the terms that turn u into weights w. Where weights have eight bits (kMost is 255),
// Isa::eight_bits gives the operand of Isa::dot: u, or u - 128 if that multiplies signed bytes.
//   kOffset       w = scale * (u - offset)
//   kMinimum      w = scale * u - minimum
//   kHalfOffset   as kOffset, with a scale for each half of the part
//   kHalfMinimum  as kMinimum, with scale and minimum for each half
#pragma once

#include <array>
#include <cstring>

#include "backend/cpu/kernels/kernels.h"
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

enum class Terms { kOffset, kMinimum, kHalfOffset, kHalfMinimum };
struct BlockTerms {
  DType type = DType::kF32;
  Terms terms = Terms::kOffset;
  int most = 0;
  int offset = 0;
};
// The terms of each type, with its kMost and offset.
inline constexpr BlockTerms kBlockTerms[] = {
    {DType::kQ8_0, Terms::kOffset, 255, 128},      {DType::kQ4_0, Terms::kOffset, 15, 8},
    {DType::kIQ4_NL, Terms::kOffset, 255, 128},    {DType::kQ4_1, Terms::kMinimum, 15},
    {DType::kQ5_0, Terms::kOffset, 31, 16},        {DType::kQ5_1, Terms::kMinimum, 31},
    {DType::kQ4_K, Terms::kMinimum, 15},           {DType::kQ5_K, Terms::kMinimum, 31},
    {DType::kQ6_K, Terms::kHalfOffset, 63, 32},    {DType::kQ3_K, Terms::kHalfOffset, 7, 4},
    {DType::kQ2_K, Terms::kHalfMinimum, 3},        {DType::kIQ4_XS, Terms::kOffset, 255, 128},
    {DType::kMXFP4, Terms::kOffset, 31, 16},       {DType::kIQ2_XXS, Terms::kOffset, 107, 64},
    {DType::kIQ2_XS, Terms::kHalfOffset, 107, 64}, {DType::kIQ2_S, Terms::kHalfOffset, 107, 64},
    {DType::kIQ3_XXS, Terms::kOffset, 126, 64},    {DType::kIQ3_S, Terms::kOffset, 31, 16},
    {DType::kIQ1_S, Terms::kOffset, 31, 16},       {DType::kIQ1_M, Terms::kHalfOffset, 31, 16},
    {DType::kTQ1_0, Terms::kOffset, 3, 1},         {DType::kTQ2_0, Terms::kOffset, 3, 1},
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
  Layout(const std::byte* words, const std::byte* tail, int first)
      : p(words + first * 4), tail_(tail + first * (kLayout.byte_field >= 0 ? 1 : 2)) {}
  const std::byte* field(std::size_t index) const { return p + kLayout.first_word(index) * kPanel * 4; }
  const std::byte* half_field(std::size_t index) const { return tail_ + index * kPanel * 2; }
  const std::byte* byte_field() const { return tail_; }

  const std::byte* p;  // words

 private:
  const std::byte* tail_;
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

// Values of 4-bit codes of MXFP4 plus the offset.
inline constexpr std::array<std::uint8_t, 16> kMxfp4Bytes = [] {
  std::array<std::uint8_t, 16> bytes{};
  for (std::size_t code = 0; code < 16; ++code)
    bytes[code] = static_cast<std::uint8_t>(kMxfp4Values[code] + block_terms(DType::kMXFP4).offset);
  return bytes;
}();

template <class Isa>
struct Block<Isa, DType::kMXFP4> : Layout<DType::kMXFP4> {
  using Layout::Layout;

  [[gnu::always_inline]] void weights(int, Words* w) const {
    nibbles(this->p, w);
    for (int g = 0; g < 8; ++g) w[g] = Isa::lookup(kMxfp4Bytes.data(), w[g]);
  }
  // half_of_e8m0() of each.
  [[gnu::always_inline]] Floats scale(int, int) const {
    const Words e = Isa::bytes(this->byte_field());
    return reinterpret_cast<Floats>(e < 2 ? (e + 1) << 21 : (e - 1) << 23);
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
  [[gnu::always_inline]] SixBitScales(const std::byte* words, const std::byte* tail, int first)
      : Layout<kType>(words, tail, first) {
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
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* tail, int first)
      : Layout(words, tail, first), scale_of_scales(Isa::halves(this->half_field(0))) {}

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
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* tail, int first)
      : Layout(words, tail, first), scale_of_scales(Isa::halves(this->half_field(0))) {
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
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* tail, int first)
      : Layout(words, tail, first),
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
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* tail, int first)
      : Layout(words, tail, first),
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

// Two bits per value, as of Q2_K, with one scale.
template <class Isa>
struct Block<Isa, DType::kTQ2_0> : OnePart<Isa, DType::kTQ2_0> {
  using OnePart<Isa, DType::kTQ2_0>::OnePart;

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    for (int g = 0; g < 8; ++g) w[g] = load_words(this->p, part / 4 * 8 + g) >> (part % 4 * 2) & 0x03030303;
  }
};

// Digits of base three: see tq1_0() of dequantize.cc.
template <class Isa>
struct Block<Isa, DType::kTQ1_0> : OnePart<Isa, DType::kTQ1_0> {
  using OnePart<Isa, DType::kTQ1_0>::OnePart;

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    for (int g = 0; g < 8; ++g) {
      if (part < 5)
        w[g] = digit(load_words(this->p, g), part);
      else if (part < 7)
        w[g] = digit(load_words(this->p, 8 + g % 4), (part - 5) * 2 + g / 4);
      else
        w[g] = g < 4 ? digit(load_words(this->p, 8 + g), 4) : digit(load_words(this->p, 12), g - 4);
    }
  }

 private:
  // Of four bytes in two steps: 255 times 81 fits 16 bits.
  [[gnu::always_inline]] static Words digit(Words bytes, int number) {
    constexpr std::uint32_t kPowers[5] = {1, 3, 9, 27, 81};
    const Words even = (bytes & 0x00ff00ff) * kPowers[number] & 0x00ff00ff;
    const Words odd = (bytes >> 8 & 0x00ff00ff) * kPowers[number] & 0x00ff00ff;
    return (even * 3 >> 8 & 0x00030003) | (odd * 3 & 0x03000300);
  }
};

}  // namespace
}  // namespace kvasir
