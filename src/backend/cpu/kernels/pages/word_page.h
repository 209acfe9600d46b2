// Writes to pages of i16, one arithmetic for all kernel tables: a token is written once and read many times. Pure over
// their arguments; no allocation. Layout: page_layout.h.
//   scale = max |x| / kMostWord, integer = x * (kMostWord / max |x|), rounded to nearest even. Where max |x| is not
//   finite the scale is NaN; below kLeastInteger all integers are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/page_format.h"

namespace kvasir {

// As the kernels store_kv, rotate_keys and move_slots (kernels.h). REQUIRES: format.key == KvType::kI16.
void store_words(const PageFormat& format, std::byte* page, int slot, const float* key, const float* value);
void rotate_words(const PageFormat& format, std::byte* page, SlotMask slots, int rotary, const float* cosine,
                  const float* sine);
void move_words(const PageFormat& format, const std::byte* from, SlotMask from_slots, std::byte* to, int to_slot,
                int rotary, const float* cosine, const float* sine);

// Reads a token's row: its key and behind it its value, each as head_dim integers (of the key rounded up to an even
// number) and their scale.
void take_word_row(const PageFormat& format, const std::byte* page, int slot, std::byte* row);
// Writes one.
void place_word_row(const PageFormat& format, const std::byte* row, int slot, std::byte* page);

}  // namespace kvasir
