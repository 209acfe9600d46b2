// Encodes pages, for all tables: a page is written once and read many times.
#include "backend/cpu/kernels/pages/encode_page.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "backend/cpu/kernels/pages/decode_page.h"
#include "tensor/dtype.h"

namespace kvasir {
namespace {

void put_half(std::byte* p, float value) {
  const std::uint16_t bits = f32_to_f16(value);
  std::memcpy(p, &bits, sizeof bits);
}

// The loops below have no branches per element, so that compilers vectorise them.

// [count] halves.
void halves_to_floats(const std::byte* halves, int count, float* out) {
  for (int i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, halves + static_cast<std::ptrdiff_t>(i) * 2, sizeof bits);
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t exponent = bits & 0x7c00U;
    const std::uint32_t wide = static_cast<std::uint32_t>(bits & 0x7fffU) << 13;
    const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(bits & 0x3ff) * 0x1p-24F);
    const std::uint32_t magnitude = exponent == 0         ? subnormal
                                    : exponent == 0x7c00U ? wide | 0x7f800000U
                                                          : wide + (112U << 23);
    out[i] = std::bit_cast<float>(sign | magnitude);
  }
}

// Returns the nearest integer, half to even, in the low bits. REQUIRES: |x| < 2^22.
std::uint32_t nearest(float x) {
  return std::bit_cast<std::uint32_t>(x + 12582912.0F);
}

// Maps the bits of a float to an integer that orders like the float, -0 before 0. Its own inverse.
std::int32_t ordered(std::int32_t bits) {
  return bits ^ (bits >> 31 & 0x7fffffff);
}

// Elements of a page's side as rows of groups.
struct Side {
  int rows = 0;
  int count = 0;  // of a row
  const float* x = nullptr;
  std::int32_t* taken = nullptr;  // -1: element i takes part in scales; 0 otherwise
  std::uint8_t* code = nullptr;   // [rows][count]
};

struct Ends {
  float least = 0;
  float most = 0;
  bool finite = true;
};

// Returns the ends of the taken elements; of equal ones the first is the least. kSize: `size` as a constant, or 0.
template <int kSize>
Ends ends_of(const float* x, const std::int32_t* taken, int size) {
  const int count = kSize > 0 ? kSize : size;
  constexpr std::int32_t kHighest = std::numeric_limits<std::int32_t>::max();
  std::int32_t lowest = kHighest;
  std::int32_t highest = -kHighest - 1;
  for (int i = 0; i < count; ++i) {
    const std::int32_t key = ordered(std::bit_cast<std::int32_t>(x[i]));
    const std::int32_t or_highest = (key & taken[i]) | (kHighest & ~taken[i]);
    const std::int32_t or_lowest = (key & taken[i]) | ((-kHighest - 1) & ~taken[i]);
    lowest = or_highest < lowest ? or_highest : lowest;
    highest = highest < or_lowest ? or_lowest : highest;
  }
  Ends ends;
  if (lowest > highest) return ends;
  constexpr std::int32_t kInfinity = 0x7f800000;
  ends.finite = lowest > ordered(static_cast<std::int32_t>(0xff800000U)) && highest < kInfinity;
  ends.least = std::bit_cast<float>(ordered(lowest));
  ends.most = std::bit_cast<float>(ordered(highest));
  if (ends.least == 0)
    for (int i = count - 1; i >= 0; --i)
      if (taken[i] != 0 && x[i] == 0) ends.least = x[i];
  return ends;
}
Ends ends_of(const float* x, const std::int32_t* taken, int size) {
  return size == kCodecGroup ? ends_of<kCodecGroup>(x, taken, size) : ends_of<0>(x, taken, size);
}

// Writes bits [shift, shift + kBits) of the codes of a block, which has `units` units.
template <int kBits>
void put_block(const std::uint8_t* code, int units, int shift, std::byte* block) {
  std::uint16_t unit[kPlaneUnits] = {};
  for (int part = 0; part < 16 / kBits; ++part)
    for (int i = 0; i < units; ++i)
      unit[i] = static_cast<std::uint16_t>(unit[i] | (code[part * units + i] >> shift & ((1 << kBits) - 1))
                                                         << (kBits * part));
  std::memcpy(block, unit, static_cast<std::size_t>(units) * sizeof unit[0]);
}

// The same for a whole block, with vectors.
template <int kBits>
void put_block(const std::uint8_t* code, int shift, std::byte* block) {
  using Bytes [[gnu::vector_size(kPlaneUnits)]] = std::uint8_t;
  using Units [[gnu::vector_size(2 * kPlaneUnits)]] = std::uint16_t;
  constexpr std::uint16_t kMask = (1 << kBits) - 1;
  Units units = {};
  for (int part = 0; part < 16 / kBits; ++part) {
    Bytes bytes;
    std::memcpy(&bytes, code + part * kPlaneUnits, sizeof bytes);
    units |= (__builtin_convertvector(bytes, Units) >> static_cast<std::uint16_t>(shift) & kMask) << (kBits * part);
  }
  std::memcpy(block, &units, sizeof units);
}

// Writes codes as a plane. Returns its end.
template <int kBits>
std::byte* put_plane(const std::uint8_t* code, int codes, int shift, std::byte* plane) {
  constexpr int kBlock = kPlaneUnits * 16 / kBits;
  for (; codes >= kBlock; codes -= kBlock, code += kBlock, plane += 64) put_block<kBits>(code, shift, plane);
  if (codes > 0) put_block<kBits>(code, codes * kBits / 16, shift, plane);
  return plane + codes * kBits / 8;
}

// Writes the codes [rows][count] of a side.
void put_codes(const EncodedSide& to, const std::uint8_t* code, std::byte* out) {
  std::uint8_t paired[kMaxCodes];
  for (int row = 0; row < to.rows; row += 2) {
    const std::uint8_t* one = code + row * to.count;
    std::uint8_t* at = paired + row * to.count;
    if (row + 1 == to.rows) {
      for (int i = 0; i < to.count; ++i) {
        at[2 * i] = one[i];
        at[2 * i + 1] = 0;
      }
    } else {
      for (int i = 0; i < to.count; ++i) {
        at[2 * i] = one[i];
        at[2 * i + 1] = one[to.count + i];
      }
    }
  }
  switch (to.type) {
    case KvType::kQ8: std::memcpy(out, paired, static_cast<std::size_t>(to.codes)); return;
    case KvType::kQ3: put_plane<1>(paired, to.codes, 2, put_plane<2>(paired, to.codes, 0, out)); return;
    case KvType::kQ2: put_plane<2>(paired, to.codes, 0, out); return;
    default: put_plane<4>(paired, to.codes, 0, out);
  }
}

// Writes the codes of a group: each element's distance from `least` in steps of `scale`. REQUIRES: scale > 0.
template <int kSize>
void put_steps(const float* x, const std::int32_t* taken, int size, float least, float scale, float most,
               std::uint8_t* code) {
  const int count = kSize > 0 ? kSize : size;
  for (int i = 0; i < count; ++i) {
    const float steps = (x[i] - least) / scale;
    const float above = steps < 0.0F ? 0.0F : steps;
    const float within = most < above ? most : above;
    code[i] = static_cast<std::uint8_t>(nearest(within) & static_cast<std::uint32_t>(taken[i]));
  }
}

// Encodes a group. Codes are computed from scale and least element as rounded to 16 bits. REQUIRES: codes are zero.
void encode_group(int levels, const float* x, const std::int32_t* taken, int size, std::uint8_t* code,
                  std::byte* scale_at, std::byte* least_at) {
  const Ends ends = ends_of(x, taken, size);
  if (!ends.finite) {
    // NaN shows in every product with the group.
    put_half(scale_at, std::numeric_limits<float>::quiet_NaN());
    put_half(least_at, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const auto most = static_cast<float>(levels);
  put_half(least_at, ends.least);
  const float least = half_at(least_at);
  put_half(scale_at, (ends.most - least) / most);
  const float scale = half_at(scale_at);
  if (scale <= 0) return;
  if (size == kCodecGroup) {
    put_steps<kCodecGroup>(x, taken, size, least, scale, most, code);
  } else {
    put_steps<0>(x, taken, size, least, scale, most, code);
  }
}

// Takes the elements farthest from the middle of their group out of `taken` and writes them, in order of place.
void keep_outliers(const Side& side, int outliers, std::byte* out) {
  static_assert(kMaxCodes <= kNoPlace);
  // Ordered by distance, then by nearness to the front. Bits of distances order like the distances, which are not
  // negative.
  std::uint64_t candidate[kMaxCodes];
  int candidates = 0;
  for (int row = 0; row < side.rows; ++row)
    for (int group = 0; group < code_groups(side.count); ++group) {
      const int first = row * side.count + group * kCodecGroup;
      const int size = group_size(side.count, group);
      const Ends ends = ends_of(side.x + first, side.taken + first, size);
      const float middle = (ends.least + ends.most) * 0.5F;
      for (int i = first; i < first + size; ++i) {
        // Infinities and NaN stay in their group, where they show.
        const std::uint64_t distance =
            ends.finite ? std::bit_cast<std::uint32_t>(std::fabs(side.x[i] - middle)) + std::uint64_t{1} : 0;
        candidate[candidates] = distance << 32 | static_cast<std::uint32_t>(kMaxCodes - i);
        candidates += side.taken[i] != 0 ? 1 : 0;
      }
    }
  const int kept = std::min(outliers, candidates);
  std::partial_sort(candidate, candidate + kept, candidate + candidates, std::greater<>());
  std::uint16_t place[kMaxCodes / 100 + 1];
  for (int i = 0; i < kept; ++i)
    place[i] = static_cast<std::uint16_t>(kMaxCodes - static_cast<int>(candidate[i] & 0xffffffffU));
  std::sort(place, place + kept);
  for (int i = 0; i < outliers; ++i, out += kOutlierBytes) {
    const std::uint16_t at = i < kept ? place[i] : kNoPlace;
    std::memcpy(out, &at, sizeof at);
    put_half(out + 2, i < kept ? side.x[at] : 0.0F);
    if (i < kept) side.taken[at] = 0;
  }
}

void encode_groups(const EncodedSide& to, const Side& side, std::byte* out) {
  std::byte* scales = out + (to.scale - to.data);
  std::byte* leasts = out + (to.least - to.data);
  if (to.type == KvType::kQ4O) keep_outliers(side, to.outliers, out + (to.places - to.data));
  const int levels = (1 << code_bits(to.type)) - 1;
  for (int row = 0; row < side.rows; ++row)
    for (int group = 0; group < code_groups(side.count); ++group) {
      const int at = row * side.count + group * kCodecGroup;
      const std::ptrdiff_t scale = 2 * (static_cast<std::ptrdiff_t>(group) * side.rows + row);
      encode_group(levels, side.x + at, side.taken + at, group_size(side.count, group), side.code + at, scales + scale,
                   leasts + scale);
    }
}

// Writes the scale of elements whose greatest magnitude has the bits `most`. Returns it as rounded to 16 bits.
float q8_scale(std::uint32_t most, std::byte* out) {
  const bool finite = most < 0x7f800000U;
  put_half(out,
           finite ? std::max(std::bit_cast<float>(most) / 127.0F, 1e-8F) : std::numeric_limits<float>::quiet_NaN());
  return half_at(out);
}

std::uint32_t magnitude(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7fffffffU;
}

// Raises most[i] to the magnitude of x[i].
void raise(const float* x, int count, std::uint32_t* most) {
  for (int i = 0; i < count; ++i) {
    const std::uint32_t of = magnitude(x[i]);
    most[i] = most[i] < of ? of : most[i];
  }
}

// Writes codes of elements; zero where the scale is zero or NaN.
void put_q8(const float* x, const float* scale, int count, std::uint8_t* __restrict code) {
  for (int i = 0; i < count; ++i) {
    const float steps = x[i] / scale[i];
    const float above = steps < -127.0F ? -127.0F : steps;
    const float within = 127.0F < above ? 127.0F : above;
    code[i] = static_cast<std::uint8_t>(nearest(within) & (scale[i] > 0 ? 0xffU : 0U));
  }
}

// Groups run along the rows, which are dimensions. Dead slots are encoded with scale 0, and so code 0, whatever scale
// the page gets for them.
void encode_q8_keys(const Side& side, SlotMask live, std::byte* scales) {
  const int slots = side.count;
  for (int group = 0; group < code_groups(side.rows); ++group) {
    const int begin = group * kCodecGroup;
    const int end = begin + group_size(side.rows, group);
    std::uint32_t most[64] = {};
    float scale[64];
    for (int d = begin; d < end; ++d) raise(side.x + d * slots, slots, most);
    for (int s = 0; s < slots; ++s, scales += 2) {
      const bool taken = (live >> s & 1) != 0;
      const float of_slot = q8_scale(taken ? most[s] : 0, scales);
      scale[s] = taken ? of_slot : 0.0F;
    }
    for (int d = begin; d < end; ++d) put_q8(side.x + d * slots, scale, slots, side.code + d * slots);
  }
}

// Groups run along the elements of a row, which is a slot.
void encode_q8_values(const Side& side, SlotMask live, std::byte* scales) {
  const int dims = side.count;
  for (int s = 0; s < side.rows; ++s)
    for (int group = 0; group < code_groups(dims); ++group) {
      const bool taken = (live >> s & 1) != 0;
      const int first = s * dims + group * kCodecGroup;
      const int size = group_size(dims, group);
      std::uint32_t most = 0;
      for (int i = first; i < first + size; ++i) {
        const std::uint32_t of = magnitude(side.x[i]);
        most = most < of ? of : most;
      }
      const float scale = q8_scale(taken ? most : 0, scales + 2 * (static_cast<std::ptrdiff_t>(group) * side.rows + s));
      if (!taken) continue;
      float divisor[kCodecGroup];
      std::fill_n(divisor, size, scale);
      put_q8(side.x + first, divisor, size, side.code + first);
    }
}

// Encodes the side of a page that lies at `open` as halves.
void encode_side(const EncodedSide& to, bool keys, const std::byte* open, SlotMask live, std::byte* out) {
  const int elements = to.rows * to.count;
  float x[kMaxCodes];
  std::int32_t taken[kMaxCodes];
  std::uint8_t code[kMaxCodes];
  halves_to_floats(open, elements, x);
  std::memset(code, 0, static_cast<std::size_t>(elements));
  for (int row = 0; row < to.rows; ++row) {
    std::int32_t* of_row = taken + row * to.count;
    if (!keys) {
      std::fill_n(of_row, to.count, -static_cast<std::int32_t>(live >> row & 1));
    } else if (row > 0) {
      std::copy_n(taken, to.count, of_row);
    } else {
      for (int s = 0; s < to.count; ++s) of_row[s] = -static_cast<std::int32_t>(live >> s & 1);
    }
  }
  const Side side{to.rows, to.count, x, taken, code};
  if (to.type != KvType::kQ8) {
    encode_groups(to, side, out);
  } else if (keys) {
    encode_q8_keys(side, live, out + (to.scale - to.data));
  } else {
    encode_q8_values(side, live, out + (to.scale - to.data));
  }
  put_codes(to, code, out);
}

}  // namespace

void store_element(KvType type, std::byte* p, float value) {
  if (type == KvType::kF32) {
    std::memcpy(p, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = type == KvType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
  std::memcpy(p, &bits, sizeof bits);
}

void encode_page(const PageFormat& format, const std::byte* open, SlotMask live, std::byte* page) {
  const PageFormat plain = format.open();
  const std::byte* open_values = open + values_offset(plain);
  std::byte* values = page + values_offset(format);
  if (!is_encoded(format.key)) {
    std::memcpy(page, open, values_offset(format));
  } else {
    encode_side(encoded_keys(format, page), true, open, live, page);
  }
  if (format.latent) return;
  if (!is_encoded(format.value)) {
    std::memcpy(values, open_values, value_side_bytes(format));
  } else {
    encode_side(encoded_values(format, page), false, open_values, live, values);
  }
}

void decode_to_open(const PageFormat& format, const std::byte* page, std::byte* open) {
  PageFormat plain = format.open();
  if (format.key == KvType::kI16) plain.key = plain.value = KvType::kF16;
  const int elements = format.head_dim * format.slots;
  float x[kMaxCodes];
  const auto put = [&](std::byte* side) {
    for (int i = 0; i < elements; ++i) put_half(side + static_cast<std::size_t>(i) * 2, x[i]);
  };
  if (format.key == plain.key) {
    std::memcpy(open, page, values_offset(format));
  } else {
    decode_keys(format, page, x);
    put(open);
  }
  if (format.latent) return;
  if (format.value == plain.value) {
    std::memcpy(open + values_offset(plain), page + values_offset(format), value_side_bytes(format));
  } else {
    decode_values(format, page, x);
    put(open + values_offset(plain));
  }
}

// In blocks of the largest power of two that divides head_dim, each divided by the root of its size.
void hadamard(float* x, int heads, int head_dim) {
  const int block = head_dim & -head_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(block));
  for (float* at = x; at < x + static_cast<std::ptrdiff_t>(heads) * head_dim; at += block) {
    for (int width = 1; width < block; width *= 2)
      for (int first = 0; first < block; first += 2 * width)
        for (int i = first; i < first + width; ++i) {
          const float a = at[i];
          const float b = at[i + width];
          at[i] = a + b;
          at[i + width] = a - b;
        }
    for (int i = 0; i < block; ++i) at[i] *= scale;
  }
}

void hadamard_keys(const PageFormat& open, std::byte* page, SlotMask slots) {
  const std::size_t size = kv_type_bytes(open.key);
  float key[kMaxHeadDim];
  for (; slots != 0; slots &= slots - 1) {
    std::byte* first = page + static_cast<std::size_t>(std::countr_zero(slots)) * size;
    const std::size_t stride = static_cast<std::size_t>(open.slots) * size;
    for (int d = 0; d < open.head_dim; ++d)
      key[d] = plain_element(open.key, first + static_cast<std::size_t>(d) * stride);
    hadamard(key, 1, open.head_dim);
    for (int d = 0; d < open.head_dim; ++d)
      store_element(open.key, first + static_cast<std::size_t>(d) * stride, key[d]);
  }
}

}  // namespace kvasir
