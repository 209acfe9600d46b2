// How blocks of quantised weights are packed: a permutation of the file's bytes, field by field, so that one load holds
// the same four bytes of a block of 16 outputs.
//   word fields  [words][16 outputs][4 bytes], in the order of the file's block
//   half fields  [16 outputs][2 bytes] each, behind the words
//   byte field   [16 outputs][1 byte], behind the words
// A block with one half field ends in the middle of a cache line. Two such blocks lie together, the half fields of both
// behind the words of both, so that no load of words crosses a line where a panel has an even number of blocks. The
// last of an odd number lies alone. So do four blocks with a byte field, and what is left of them.
// Q5_0 and Q5_1 regroup their high bits on the way so that bit g of byte k belongs to input 4g + k, IQ2_S and IQ3_S
// their signs. So do IQ2_XXS and IQ3_XXS, whose words of 28 signs and a 4-bit scale hold the scale's bits where the
// eighth sign of each eight would be. Internal to this folder.
#pragma once

#include <array>
#include <cstddef>

#include "backend/cpu/kernels/kernels.h"

namespace kvasir {

struct QuantizedLayout {
  struct WordField {
    int offset = 0;  // in the file's block
    int words = 0;
  };
  DType type = DType::kQ8_0;
  int inputs = 0;       // of a block
  int block_bytes = 0;  // of one output's block
  std::array<WordField, 3> word_fields{};
  std::array<int, 2> half_fields{-1, -1};  // offsets in the file's block; -1: none
  int byte_field = -1;                     // the same; a block has no half fields besides

  [[gnu::always_inline]] constexpr int words() const {
    int sum = 0;
    for (const WordField& field : word_fields) sum += field.words;
    return sum;
  }
  [[gnu::always_inline]] constexpr std::size_t panel_block_bytes() const {
    return static_cast<std::size_t>(block_bytes) * kPanel;
  }
  // Where the words of a field begin, counted in words.
  [[gnu::always_inline]] constexpr int first_word(std::size_t field) const {
    int first = 0;
    for (std::size_t f = 0; f < field; ++f) first += word_fields[f].words;
    return first;
  }

  // What of a block lies behind its words, in bytes of each output.
  [[gnu::always_inline]] constexpr int tail_bytes() const {
    return (half_fields[0] >= 0 ? 2 : 0) + (half_fields[1] >= 0 ? 2 : 0) + (byte_field >= 0 ? 1 : 0);
  }
  // How many blocks lie together: their tails fill a cache line.
  [[gnu::always_inline]] constexpr int together() const { return tail_bytes() == 1 ? 4 : tail_bytes() == 2 ? 2 : 1; }

  // Where a block's words and its tail begin in its panel, in bytes.
  struct Place {
    std::size_t words = 0;
    std::size_t tail = 0;
  };
  [[gnu::always_inline]] constexpr std::size_t word_bytes() const {
    return static_cast<std::size_t>(words()) * kPanel * 4;
  }
  // Of block `block` of the panel's `blocks`.
  [[gnu::always_inline]] constexpr Place place(int block, int blocks) const {
    const int within = block % together();
    const int first = block - within;
    const int count = blocks - first < together() ? blocks - first : together();
    const std::size_t first_words = static_cast<std::size_t>(first) * panel_block_bytes();
    return {first_words + static_cast<std::size_t>(within) * word_bytes(),
            first_words + static_cast<std::size_t>(count) * word_bytes() +
                static_cast<std::size_t>(within * tail_bytes() * kPanel)};
  }
};

// Fields as the formats are published: (offset, words), then the offsets of 16-bit floats (of IQ4_XS also its high
// bits of scales), then that of an 8-bit scale.
inline constexpr QuantizedLayout kQuantizedLayouts[] = {
    {DType::kQ4_0, 32, 18, {{{2, 4}}}, {0, -1}},
    {DType::kQ4_1, 32, 20, {{{4, 4}}}, {0, 2}},
    {DType::kQ5_0, 32, 22, {{{2, 1}, {6, 4}}}, {0, -1}},
    {DType::kQ5_1, 32, 24, {{{4, 1}, {8, 4}}}, {0, 2}},
    {DType::kQ8_0, 32, 34, {{{2, 8}}}, {0, -1}},
    {DType::kQ2_K, 256, 84, {{{0, 4}, {16, 16}}}, {80, 82}},
    {DType::kQ3_K, 256, 110, {{{0, 8}, {32, 16}, {96, 3}}}, {108, -1}},
    {DType::kQ4_K, 256, 144, {{{4, 3}, {16, 32}}}, {0, 2}},
    {DType::kQ5_K, 256, 176, {{{4, 3}, {16, 8}, {48, 32}}}, {0, 2}},
    {DType::kQ6_K, 256, 210, {{{0, 32}, {128, 16}, {192, 4}}}, {208, -1}},
    {DType::kIQ4_NL, 32, 18, {{{2, 4}}}, {0, -1}},
    {DType::kIQ4_XS, 256, 136, {{{4, 1}, {8, 32}}}, {0, 2}},
    {DType::kIQ2_XXS, 256, 66, {{{2, 16}}}, {0, -1}},
    {DType::kIQ2_XS, 256, 74, {{{2, 16}, {66, 2}}}, {0, -1}},
    {DType::kIQ2_S, 256, 82, {{{2, 16}, {66, 2}, {74, 2}}}, {0, -1}},
    {DType::kIQ3_XXS, 256, 98, {{{2, 16}, {66, 8}}}, {0, -1}},
    {DType::kIQ3_S, 256, 110, {{{2, 16}, {66, 2}, {74, 9}}}, {0, -1}},
    {DType::kIQ1_S, 256, 50, {{{2, 8}, {34, 4}}}, {0, -1}},
    {DType::kIQ1_M, 256, 56, {{{0, 8}, {32, 4}, {48, 2}}}, {-1, -1}},
    {DType::kTQ1_0, 256, 54, {{{0, 13}}}, {52, -1}},
    {DType::kTQ2_0, 256, 66, {{{0, 16}}}, {64, -1}},
    {DType::kMXFP4, 32, 17, {{{1, 4}}}, {-1, -1}, 0},
};

// Returns null for types that are not quantised.
constexpr const QuantizedLayout* quantized_layout(DType type) {
  for (const QuantizedLayout& layout : kQuantizedLayouts)
    if (layout.type == type) return &layout;
  return nullptr;
}

}  // namespace kvasir
