// Blocks whose weights are indices into grids (tensor/grids.h), opened as those of quantized_blocks.h: IQ1, IQ2 and
// IQ3. Internal to the translation unit that includes it.
//
// One index names eight weights, or four of IQ3. A look-up gives their codes; magnitudes are no more than eight, so
// that a code with its weight's sign in bit 3 takes the weight from a table of 16 bytes.
#pragma once

#include <array>
#include <cstdint>

#include "backend/cpu/kernels/quantized_blocks.h"
#include "tensor/grids.h"

namespace kvasir {
namespace {

// Weights plus the type's offset: of codes, then of codes of negative weights.
template <DType kType, std::size_t kCount>
constexpr std::array<std::uint8_t, 16> signed_bytes(const std::array<int, kCount>& magnitudes) {
  constexpr int kOffset = block_terms(kType).offset;
  std::array<std::uint8_t, 16> bytes{};
  for (std::size_t code = 0; code < kCount; ++code) {
    bytes[code] = static_cast<std::uint8_t>(kOffset + magnitudes[code]);
    bytes[8 + code] = static_cast<std::uint8_t>(kOffset - magnitudes[code]);
  }
  return bytes;
}
inline constexpr auto kIq2Bytes = signed_bytes<DType::kIQ2_XXS>(kIq2Magnitudes);
inline constexpr auto kIq3XxsBytes = signed_bytes<DType::kIQ3_XXS>(kIq3XxsMagnitudes);
inline constexpr auto kIq3SBytes = signed_bytes<DType::kIQ3_S>(kIq3SMagnitudes);

// Signs of four inputs, in bit 3 of each byte: those of register `g`, of bits grouped as quantized_layout.h says.
[[gnu::always_inline]] inline Words grouped_signs(Words grouped, int g) {
  return (g < 3 ? grouped << (3 - g) : grouped >> (g - 3)) & 0x08080808;
}
// The same of bits in order, eight in each byte.
[[gnu::always_inline]] inline Words ordered_signs(Words ordered, int g) {
  const Words four = ordered >> (4 * g) & 15;
  const Words two = four << 3 | four << 10;
  return (two | two << 14) & 0x08080808;
}

// Words of 28 signs and a 4-bit scale, as they are packed.
struct SignsAndScale {
  Words word;

  // Returns grouped signs. The eighth of each eight makes the number of negative ones even.
  [[gnu::always_inline]] Words signs() const {
    const Words sevens = word & 0x55ffffff;
    Words odd = sevens ^ sevens >> 16;
    odd ^= odd >> 8;
    odd ^= odd >> 1;
    return sevens | (odd & 0x55) << 25;
  }
  [[gnu::always_inline]] Words scale() const {
    Words bits = word >> 25 & 0x55;
    bits = (bits | bits >> 1) & 0x33;
    return (bits | bits >> 2) & 0x0f;
  }
};

// Opens a part of IQ2: index(n) of each eight weights, sign(g) of register g.
template <class Isa, class Index, class Sign>
[[gnu::always_inline]] inline void open_iq2(const std::uint32_t* grid, const Index& index, const Sign& sign, Words* w) {
  for (int n = 0; n < 4; ++n) {
    const Words codes = Isa::gather(grid, index(n));
    w[2 * n] = Isa::lookup(kIq2Bytes.data(), (codes & 0x0f0f0f0f) | sign(2 * n));
    w[2 * n + 1] = Isa::lookup(kIq2Bytes.data(), (codes >> 4 & 0x0f0f0f0f) | sign(2 * n + 1));
  }
}

// A block with a scale of scales in its half field. `unit` is what the scales count in.
template <class Isa, DType kType>
struct ScaledBlock : Layout<kType> {
  [[gnu::always_inline]] ScaledBlock(const std::byte* words, const std::byte* tail, int first, float unit)
      : Layout<kType>(words, tail, first), scale_of_scales(Isa::halves(this->half_field(0)) * unit) {}

  // Of 4-bit or 3-bit scales, which stand for odd numbers.
  [[gnu::always_inline]] Floats scale_of(Words bits) const { return scale_of_scales * to_floats(bits << 1 | 1); }

  Floats scale_of_scales;
};

template <class Isa>
struct Block<Isa, DType::kIQ2_XXS> : ScaledBlock<Isa, DType::kIQ2_XXS> {
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* tail, int first)
      : ScaledBlock<Isa, DType::kIQ2_XXS>(words, tail, first, 0.125F) {}

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    const Words indices = load_words(this->p, 2 * part);
    const Words signs = SignsAndScale{load_words(this->p, 2 * part + 1)}.signs();
    open_iq2<Isa>(
        kIq2XxsGrid.data(), [&](int n) { return byte_of(indices, n); }, [&](int g) { return grouped_signs(signs, g); },
        w);
  }
  [[gnu::always_inline]] Floats scale(int part, int) const {
    return this->scale_of(SignsAndScale{load_words(this->p, 2 * part + 1)}.scale());
  }
};

template <class Isa>
struct Block<Isa, DType::kIQ2_XS> : ScaledBlock<Isa, DType::kIQ2_XS> {
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* tail, int first)
      : ScaledBlock<Isa, DType::kIQ2_XS>(words, tail, first, 0.125F) {}

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    const Words both[2] = {load_words(this->p, 2 * part), load_words(this->p, 2 * part + 1)};
    Words signs =
        (both[0] >> 9 & 0x7f) | (both[0] >> 17 & 0x7f00) | (both[1] << 7 & 0x7f0000) | (both[1] >> 1 & 0x7f000000);
    Words odd = signs ^ signs >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    signs |= (odd & 0x01010101) << 7;
    open_iq2<Isa>(
        kIq2XsGrid.data(), [&](int n) { return both[n / 2] >> (n % 2 * 16) & 511; },
        [&](int g) { return ordered_signs(signs, g); }, w);
  }
  [[gnu::always_inline]] Floats scale(int part, int half) const {
    return this->scale_of(load_words(this->field(1), part / 4) >> (part % 4 * 8 + half * 4) & 15);
  }
};

template <class Isa>
struct Block<Isa, DType::kIQ2_S> : ScaledBlock<Isa, DType::kIQ2_S> {
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* tail, int first)
      : ScaledBlock<Isa, DType::kIQ2_S>(words, tail, first, 0.125F) {}

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    const Words low = load_words(this->p, part);
    const Words high = byte_of(load_words(this->field(1), part / 4), part % 4);
    const Words signs = load_words(this->p, 8 + part);
    open_iq2<Isa>(
        kIq2SGrid.data(), [&](int n) { return byte_of(low, n) | (high << (8 - 2 * n) & 0x300); },
        [&](int g) { return grouped_signs(signs, g); }, w);
  }
  [[gnu::always_inline]] Floats scale(int part, int half) const {
    return this->scale_of(load_words(this->field(2), part / 4) >> (part % 4 * 8 + half * 4) & 15);
  }
};

template <class Isa>
struct Block<Isa, DType::kIQ3_XXS> : ScaledBlock<Isa, DType::kIQ3_XXS> {
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* tail, int first)
      : ScaledBlock<Isa, DType::kIQ3_XXS>(words, tail, first, 0.25F) {}

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    const Words signs = SignsAndScale{load_words(this->field(1), part)}.signs();
    for (int g = 0; g < 8; ++g) {
      const Words codes = Isa::gather(kIq3XxsGrid.data(), byte_of(load_words(this->p, 2 * part + g / 4), g % 4));
      w[g] = Isa::lookup(kIq3XxsBytes.data(), codes | grouped_signs(signs, g));
    }
  }
  [[gnu::always_inline]] Floats scale(int part, int) const {
    return this->scale_of(SignsAndScale{load_words(this->field(1), part)}.scale());
  }
};

template <class Isa>
struct Block<Isa, DType::kIQ3_S> : ScaledBlock<Isa, DType::kIQ3_S> {
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* tail, int first)
      : ScaledBlock<Isa, DType::kIQ3_S>(words, tail, first, 1.0F) {}

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    const Words signs = load_words(this->field(2), part);
    const Words high = byte_of(load_words(this->field(1), part / 4), part % 4);
    for (int g = 0; g < 8; ++g) {
      const Words index = byte_of(load_words(this->p, 2 * part + g / 4), g % 4) | (high << (8 - g) & 0x100);
      w[g] = Isa::lookup(kIq3SBytes.data(), Isa::gather(kIq3SGrid.data(), index) | grouped_signs(signs, g));
    }
  }
  [[gnu::always_inline]] Floats scale(int part, int) const {
    return this->scale_of(load_words(this->field(2), 8) >> (part * 4) & 15);
  }
};

// Opens eight weights of IQ1 as 8 * (code - 1) + 16, and one more or less.
template <class Isa>
[[gnu::always_inline]] inline void open_iq1(Words index, Words less, Words* w) {
  const Words codes = Isa::gather(kIq1Grid.data(), index);
  const Words shift = 0x09090909 - ((less << 1) | (less << 9) | (less << 17) | (less << 25));
  w[0] = ((codes & 0x0f0f0f0f) << 3) + shift;
  w[1] = ((codes >> 1) & 0x78787878) + shift;
}

template <class Isa>
struct Block<Isa, DType::kIQ1_S> : ScaledBlock<Isa, DType::kIQ1_S> {
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* tail, int first)
      : ScaledBlock<Isa, DType::kIQ1_S>(words, tail, first, 0.125F) {}

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    const Words low = load_words(this->p, part);
    const Words high = high_of(part);
    for (int n = 0; n < 4; ++n) open_iq1<Isa>(byte_of(low, n) | (high >> (3 * n) & 7) << 8, high >> 15 & 1, w + 2 * n);
  }
  [[gnu::always_inline]] Floats scale(int part, int) const { return this->scale_of(high_of(part) >> 12 & 7); }

 private:
  [[gnu::always_inline]] Words high_of(int part) const {
    return load_words(this->field(1), part / 2) >> (part % 2 * 16);
  }
};

// The floats of 16 bits each.
[[gnu::always_inline]] inline Floats floats_of_halves(Words bits) {
  const Words magnitude = (bits & 0x7fff) << 13;
  const Words wide = reinterpret_cast<Words>(reinterpret_cast<Floats>(magnitude) * 0x1p112F);
  return reinterpret_cast<Floats>(wide | (magnitude >= 0x0f800000 ? Words{} + 0x7f800000 : Words{}) |
                                  (bits & 0x8000) << 16);
}

template <class Isa>
struct Block<Isa, DType::kIQ1_M> : Layout<DType::kIQ1_M> {
  [[gnu::always_inline]] Block(const std::byte* words, const std::byte* tail, int first) : Layout(words, tail, first) {
    const Words a = load_words(this->field(2), 0);
    const Words b = load_words(this->field(2), 1);
    scale_of_scales =
        0.125F * floats_of_halves((a >> 12 & 0xf) | (a >> 24 & 0xf0) | (b >> 4 & 0xf00) | (b >> 16 & 0xf000));
  }

  [[gnu::always_inline]] void weights(int part, Words* w) const {
    const Words low = load_words(this->p, part);
    const Words high = load_words(this->field(1), part / 2) >> (part % 2 * 16);
    for (int n = 0; n < 4; ++n)
      open_iq1<Isa>(byte_of(low, n) | (high >> (4 * n) & 7) << 8, high >> (4 * n + 3) & 1, w + 2 * n);
  }
  [[gnu::always_inline]] Floats scale(int part, int half) const {
    const Words bits = load_words(this->field(2), part / 4) >> (part / 2 % 2 * 16 + (part % 2 * 2 + half) * 3) & 7;
    return scale_of_scales * to_floats(bits << 1 | 1);
  }

  Floats scale_of_scales;
};

}  // namespace
}  // namespace kvasir
