// The arithmetic of codecs, one for all kernel tables. Pure over their arguments; no allocation. Layouts:
// page_layout.h.
#pragma once

#include <cstddef>

#include "backend/page_format.h"

namespace kvasir {

// Encodes a page in 16 bits (format.open()) as `format`. Slots outside `live` take no part in scales, and their codes
// are zero. A group that holds an infinity or NaN has scale NaN, which shows in every result computed from it.
//   q8: scale = max |x| / 127 (at least 1e-8), code = x / scale.
//   others: least = min x, scale = (max x - least) / (2^bits - 1), code = (x - least) / scale.
// Scales and least elements are f16, and codes are computed from their rounded values. All rounding is half to even.
// REQUIRES: format.encoded().
void encode_page(const PageFormat& format, const std::byte* open, SlotMask live, std::byte* page);

// Decodes a page to 16 bits: format.open(), or f16 where it is in i16. REQUIRES: format.encoded(), or i16.
void decode_to_open(const PageFormat& format, const std::byte* page, std::byte* open);

// Writes an element of a page. REQUIRES: has_floats(type).
void store_element(KvType type, std::byte* p, float value);

// Multiplies each of `heads` heads with a Walsh-Hadamard matrix in blocks of the largest power of two that divides
// head_dim. It is its own inverse, but for rounding.
void hadamard(float* x, int heads, int head_dim);
// Does the same to the keys of some slots of a page that is not encoded.
void hadamard_keys(const PageFormat& open, std::byte* page, SlotMask slots);

}  // namespace kvasir
