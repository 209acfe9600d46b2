// The layout of a KV page in memory: known to the kernel tables, nowhere else.
//   keys    [head_dim][slots]   dimension-major: one query element is multiplied with all slots at once
//   values  [slots][head_dim]   token-major: one weight is multiplied with a whole value
// A side in i16 has integers in the order of words, as below, and behind them the scales of its slots, f32 [slots]. An
// element is scale * integer.
// An encoded side has codes in place of the elements, and behind them, as f16:
//   q8      scale: keys [groups of dimensions][slots], values [groups of dimensions][slots]
//   others  scale, then least element, each: keys [groups of slots][head_dim], values [groups of dimensions][slots]
//   q4o     then its outliers, in order of place (row-major, as above): {u16 place, f16 element}; place kNoPlace: none
// Codes are stored in the order of words: those of two rows (dimensions of keys, slots of values) beside each other,
// [pair of rows][element][2], the missing row of an odd pair zero. Integer dot products take such pairs.
//   q8      a byte in two's complement each
//   q4      a plane of 4 bits
//   q2      a plane of 2 bits
//   q3      a plane of the low 2 bits, then one of the high bit
// A plane of b bits is blocks of 64 bytes: 512 / b codes in units of 16 bits, code i of a block in unit i % 32 from bit
// b * (i / 32) on, so that a vector of units opens to vectors of consecutive codes. The last block may be short: of n
// codes, n * b / 16 units in place of 32.
// Inline everywhere: kernels of all instruction sets use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backend/page_format.h"
#include "backend/page_sizes.h"

namespace kvasir {

inline constexpr std::uint16_t kNoPlace = 0xffff;
inline constexpr int kPlaneUnits = 32;  // of a block

template <KvType kType>
inline constexpr std::size_t kElementBytes = kType == KvType::kF32 ? 4 : 2;

// Calls run.operator()<type>(). REQUIRES: the type's elements are floats.
template <class Run>
[[gnu::always_inline]] inline void with_element_type(KvType type, const Run& run) {
  switch (type) {
    case KvType::kF16: return run.template operator()<KvType::kF16>();
    case KvType::kBF16: return run.template operator()<KvType::kBF16>();
    default: return run.template operator()<KvType::kF32>();
  }
}

// Bytes in front of the values.
[[gnu::always_inline]] inline std::size_t values_offset(const PageFormat& format) {
  return key_side_bytes(format);
}

// Returns the place of a row's element i among the words of a side whose rows have `count` elements.
[[gnu::always_inline]] inline int word_index(int row, int i, int count) {
  return (row / 2 * count + i) * 2 + row % 2;
}

// A side in i16.
template <class Byte>
struct WordSide {
  int rows;   // dimensions of keys, slots of values
  int count;  // elements of a row
  Byte* data;

  [[gnu::always_inline]] Byte* at(int row, int i) const {
    return data + static_cast<std::ptrdiff_t>(word_index(row, i, count)) * 2;
  }
  [[gnu::always_inline]] Byte* scale_at(int slot) const {
    return data + word_scales_offset(rows, count) + static_cast<std::size_t>(slot) * kWordScaleBytes;
  }
  [[gnu::always_inline]] std::int32_t integer(int row, int i) const {
    std::int16_t n;
    __builtin_memcpy(&n, at(row, i), sizeof n);
    return n;
  }
  [[gnu::always_inline]] float scale(int slot) const {
    float of_slot;
    __builtin_memcpy(&of_slot, scale_at(slot), sizeof of_slot);
    return of_slot;
  }
};

// `page` is the start of the page.
template <class Byte>
[[gnu::always_inline]] inline WordSide<Byte> word_keys(const PageFormat& format, Byte* page) {
  return {format.head_dim, format.slots, page};
}
template <class Byte>
[[gnu::always_inline]] inline WordSide<Byte> word_values(const PageFormat& format, Byte* page) {
  return {format.slots, format.head_dim, page + values_offset(format)};
}

// Bytes of one token's value; of a latent page 0. REQUIRES: elements are floats.
[[gnu::always_inline]] inline std::size_t value_bytes(const PageFormat& format) {
  return format.latent ? 0 : kv_type_bytes(format.value) * static_cast<std::size_t>(format.head_dim);
}

// Writes a token's row, its key and behind it its value, to a slot of a page. REQUIRES: elements are floats.
[[gnu::always_inline]] inline void place_row(const PageFormat& format, const std::byte* row, int slot,
                                             std::byte* page) {
  const auto dims = static_cast<std::size_t>(format.head_dim);
  const std::size_t key = kv_type_bytes(format.key);
  const auto scatter = [&]<std::size_t kBytes>() {
    std::byte* to = page + static_cast<std::size_t>(slot) * kBytes;
    for (std::size_t d = 0; d < dims; ++d, to += static_cast<std::size_t>(format.slots) * kBytes)
      std::memcpy(to, row + d * kBytes, kBytes);
  };
  if (key == 2) {
    scatter.template operator()<2>();
  } else {
    scatter.template operator()<4>();
  }
  const std::size_t value = value_bytes(format);
  std::memcpy(page + values_offset(format) + static_cast<std::size_t>(slot) * value, row + key * dims, value);
}

// Where the parts of an encoded side lie. Groups run along the rows for q8 keys, along the elements of a row otherwise.
struct EncodedSide {
  KvType type = KvType::kQ8;
  int rows = 0;
  int count = 0;                      // elements of a row
  int codes = 0;                      // with those of a missing row
  int outliers = 0;                   // outliers
  const std::byte* data = nullptr;    // codes
  const std::byte* scale = nullptr;   // f16 [groups][rows], of q8 keys [groups][count]
  const std::byte* least = nullptr;   // f16 [groups][rows]; nullptr: zero
  const std::byte* places = nullptr;  // of outliers
};

[[gnu::always_inline]] inline EncodedSide encoded_side(KvType type, int rows, int count, int scales, int outliers,
                                                       const std::byte* data) {
  EncodedSide side{type, rows, count, side_codes(rows, count), type == KvType::kQ4O ? outliers : 0, data};
  side.scale = data + code_bytes(type, side.codes);
  if (type != KvType::kQ8) {
    side.least = side.scale + static_cast<std::size_t>(scales) * 2;
    side.places = side.least + static_cast<std::size_t>(scales) * 2;
  }
  return side;
}

// `page` is the start of the page. Of a side that is not encoded, only type, rows, count and data are valid.
[[gnu::always_inline]] inline EncodedSide encoded_keys(const PageFormat& format, const std::byte* page) {
  return encoded_side(format.key, format.head_dim, format.slots, key_scales(format), outliers(format), page);
}
[[gnu::always_inline]] inline EncodedSide encoded_values(const PageFormat& format, const std::byte* page) {
  return encoded_side(format.value, format.slots, format.head_dim, value_scales(format), outliers(format),
                      page + values_offset(format));
}

}  // namespace kvasir
