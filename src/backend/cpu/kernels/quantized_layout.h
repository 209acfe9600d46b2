// How blocks of quantised weights are packed: a permutation of the file's bytes, field by field, so that one load holds
// the same four bytes of a block of 16 outputs.
//   word fields  [words][16 outputs][4 bytes], in the order of the file's block
//   half fields  [16 outputs][2 bytes] each, behind the words
// A block with one half field ends in the middle of a cache line. Two such blocks lie together, the half fields of both
// behind the words of both, so that no load of words crosses a line where a panel has an even number of blocks. The
// last of an odd number lies alone.
// Q5_0 and Q5_1 regroup their high bits on the way so that bit g of byte k belongs to input 4g + k. Internal to this
// folder.
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

  // Where a block's words and half fields begin in its panel, in bytes.
  struct Place {
    std::size_t words = 0;
    std::size_t halves = 0;
  };
  [[gnu::always_inline]] constexpr bool lies_in_pairs() const { return half_fields[1] < 0; }
  [[gnu::always_inline]] constexpr std::size_t word_bytes() const {
    return static_cast<std::size_t>(words()) * kPanel * 4;
  }
  // Of block `block` of the panel's `blocks`.
  [[gnu::always_inline]] constexpr Place place(int block, int blocks) const {
    const std::size_t second = lies_in_pairs() ? static_cast<std::size_t>(block % 2) : 0;
    const std::size_t first_words = (static_cast<std::size_t>(block) - second) * panel_block_bytes();
    const std::size_t together = lies_in_pairs() && (block | 1) < blocks ? 2 : 1;
    return {first_words + second * word_bytes(), first_words + together * word_bytes() + second * kPanel * 2};
  }
};

// Fields as the formats are published: (offset, words), then the offsets of 16-bit floats (of IQ4_XS also its high
// bits of scales).
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
};

// Returns null for types that are not quantised.
constexpr const QuantizedLayout* quantized_layout(DType type) {
  for (const QuantizedLayout& layout : kQuantizedLayouts)
    if (layout.type == type) return &layout;
  return nullptr;
}

}  // namespace kvasir
