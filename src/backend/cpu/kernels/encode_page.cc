// Encodes pages. One definition for all tables: a page is written once and read many times.
#include "backend/cpu/kernels/encode_page.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/kernels/decode_page.h"
#include "tensor/dtype.h"

namespace kvasir {
namespace {

void put_half(std::byte* p, float value) {
  const std::uint16_t bits = f32_to_f16(value);
  std::memcpy(p, &bits, sizeof bits);
}

// To the nearest integer, half to even. REQUIRES: |x| < 2^22.
float nearest(float x) {
  constexpr float kShift = 12582912.0F;
  return (x + kShift) - kShift;
}

// Elements of a page's side as rows of groups. `taken[i]`: element i takes part in scales.
struct Side {
  int rows = 0;
  int count = 0;  // of a row
  const float* x = nullptr;
  bool* taken = nullptr;
};

struct Ends {
  float least = 0;
  float most = 0;
  bool any = false;
  bool finite = true;
};

Ends ends_of(const float* x, const bool* taken, int count) {
  Ends ends;
  for (int i = 0; i < count; ++i) {
    if (!taken[i]) continue;
    ends.finite = ends.finite && std::isfinite(x[i]);
    ends.least = ends.any ? std::min(ends.least, x[i]) : x[i];
    ends.most = ends.any ? std::max(ends.most, x[i]) : x[i];
    ends.any = true;
  }
  return ends;
}

// Writes bits [shift, shift + kBits) of each code as a plane, and returns what lies behind it.
template <int kBits>
std::byte* put_plane(const std::uint8_t* code, int codes, int shift, std::byte* plane) {
  constexpr int kBlock = kPlaneUnits * 16 / kBits;
  for (int from = 0; from < codes; from += kBlock) {
    const int count = std::min(kBlock, codes - from);
    const int units = count * kBits / 16;
    std::uint16_t unit[kPlaneUnits] = {};
    for (int part = 0; part < 16 / kBits; ++part)
      for (int i = 0; i < units; ++i)
        unit[i] = static_cast<std::uint16_t>(unit[i] | (code[from + part * units + i] >> shift & ((1 << kBits) - 1))
                                                           << (kBits * part));
    std::memcpy(plane, unit, static_cast<std::size_t>(units) * sizeof unit[0]);
    plane += units * 2;
  }
  return plane;
}

void put_codes(KvType type, const std::uint8_t* code, int codes, std::byte* out) {
  switch (type) {
    case KvType::kQ8: std::memcpy(out, code, static_cast<std::size_t>(codes)); return;
    case KvType::kQ3: put_plane<1>(code, codes, 2, put_plane<2>(code, codes, 0, out)); return;
    case KvType::kQ2: put_plane<2>(code, codes, 0, out); return;
    default: put_plane<4>(code, codes, 0, out);
  }
}

// A code is the element's distance from the least one in steps of the scale, both as their 16 bits say. Codes lie two
// places apart (page_layout.h).
void encode_group(int levels, const float* x, const bool* taken, int count, std::uint8_t* code, std::byte* scale_at,
                  std::byte* least_at) {
  const Ends ends = ends_of(x, taken, count);
  if (!ends.finite) {
    // It shows in every product with the group.
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
  for (int i = 0; i < count; ++i) {
    const float steps = taken[i] ? (x[i] - least) / scale : 0.0F;
    code[2 * i] = static_cast<std::uint8_t>(nearest(std::clamp(steps, 0.0F, most)));
  }
}

// Takes the elements farthest from the middle of their group out of `taken` and writes them, in order of place.
void keep_apart(const Side& side, int apart, std::byte* out) {
  static_assert(kMaxCodes <= 32768);
  float distance[kMaxCodes];
  std::uint16_t place[kMaxCodes];
  int candidates = 0;
  for (int row = 0; row < side.rows; ++row)
    for (int group = 0; group < code_groups(side.count); ++group) {
      const int first = row * side.count + group * kCodecGroup;
      const int size = group_size(side.count, group);
      const Ends ends = ends_of(side.x + first, side.taken + first, size);
      const float middle = (ends.least + ends.most) * 0.5F;
      for (int i = first; i < first + size; ++i) {
        if (!side.taken[i]) continue;
        // What is not finite stays in its group, where it shows.
        const float d = ends.finite ? std::fabs(side.x[i] - middle) : -1.0F;
        distance[i] = d;
        place[candidates++] = static_cast<std::uint16_t>(i);
      }
    }
  const int kept = std::min(apart, candidates);
  std::partial_sort(place, place + kept, place + candidates, [&](std::uint16_t a, std::uint16_t b) {
    return distance[a] != distance[b] ? distance[a] > distance[b] : a < b;
  });
  std::sort(place, place + kept);
  for (int i = 0; i < apart; ++i, out += kOutlierBytes) {
    const std::uint16_t at = i < kept ? place[i] : kNoPlace;
    std::memcpy(out, &at, sizeof at);
    put_half(out + 2, i < kept ? side.x[at] : 0.0F);
    if (i < kept) side.taken[at] = false;
  }
}

void encode_groups(const EncodedSide& to, const Side& side, std::byte* out) {
  std::uint8_t code[kMaxCodes];
  std::memset(code, 0, static_cast<std::size_t>(to.codes));
  std::byte* scales = out + (to.scale - to.data);
  std::byte* leasts = out + (to.least - to.data);
  if (to.type == KvType::kQ4O) keep_apart(side, to.apart, out + (to.places - to.data));
  const int levels = (1 << code_bits(to.type)) - 1;
  for (int row = 0; row < side.rows; ++row)
    for (int group = 0; group < code_groups(side.count); ++group) {
      const int first = group * kCodecGroup;
      const int at = row * side.count + first;
      const std::ptrdiff_t scale = 2 * (static_cast<std::ptrdiff_t>(group) * side.rows + row);
      encode_group(levels, side.x + at, side.taken + at, group_size(side.count, group),
                   code + code_index(to, row, first), scales + scale, leasts + scale);
    }
  put_codes(to.type, code, to.codes, out);
}

// The scale of elements whose greatest magnitude is `most`: what is divided by, as 16 bits say.
float q8_scale(float most, std::byte* out) {
  put_half(out, std::isfinite(most) ? std::max(most / 127.0F, 1e-8F) : std::numeric_limits<float>::quiet_NaN());
  return half_at(out);
}

std::int8_t q8_code(float x, float scale) {
  return scale > 0 ? static_cast<std::int8_t>(nearest(std::clamp(x / scale, -127.0F, 127.0F))) : std::int8_t{0};
}

float greater_magnitude(float most, float x) {
  return std::isnan(x) ? std::numeric_limits<float>::infinity() : std::max(most, std::fabs(x));
}

// Groups run along the rows of keys, along the elements of a row of values.
void encode_q8(const EncodedSide& to, bool keys, const float* x, SlotMask live, std::byte* out) {
  std::uint8_t code[kMaxCodes];
  std::memset(code, 0, static_cast<std::size_t>(to.codes));
  std::byte* scales = out + (to.scale - to.data);
  const int slots = keys ? to.count : to.rows;
  const int dims = keys ? to.rows : to.count;
  for (int group = 0; group < code_groups(dims); ++group)
    for (int s = 0; s < slots; ++s) {
      const int begin = group * kCodecGroup;
      const int end = begin + group_size(dims, group);
      const bool taken = (live >> s & 1) != 0;
      const auto element = [&](int d) { return x[keys ? d * slots + s : s * dims + d]; };
      float most = 0;
      for (int d = begin; taken && d < end; ++d) most = greater_magnitude(most, element(d));
      const float scale = q8_scale(most, scales + 2 * (static_cast<std::ptrdiff_t>(group) * slots + s));
      for (int d = begin; taken && d < end; ++d)
        code[keys ? code_index(to, d, s) : code_index(to, s, d)] =
            static_cast<std::uint8_t>(q8_code(element(d), scale));
    }
  put_codes(to.type, code, to.codes, out);
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
  const int elements = format.head_dim * format.slots;
  float x[kMaxCodes];
  bool taken[kMaxCodes];
  const auto encode = [&](const EncodedSide& to, bool keys, std::byte* out) {
    if (to.type == KvType::kQ8) return encode_q8(to, keys, x, live, out);
    for (int i = 0; i < elements; ++i) taken[i] = (live >> (keys ? i % to.count : i / to.count) & 1) != 0;
    encode_groups(to, {to.rows, to.count, x, taken}, out);
  };
  if (!is_encoded(format.key)) {
    std::memcpy(page, open, values_offset(format));
  } else {
    decode_keys(plain, open, x);
    encode(encoded_keys(format, page), true, page);
  }
  std::byte* values = page + values_offset(format);
  if (!is_encoded(format.value)) {
    std::memcpy(values, open + values_offset(plain), value_side_bytes(format));
  } else {
    decode_values(plain, open, x);
    encode(encoded_values(format, page), false, values);
  }
}

void decode_to_open(const PageFormat& format, const std::byte* page, std::byte* open) {
  const PageFormat plain = format.open();
  const int elements = format.head_dim * format.slots;
  float x[kMaxCodes];
  const auto put = [&](std::byte* side) {
    for (int i = 0; i < elements; ++i) put_half(side + static_cast<std::size_t>(i) * 2, x[i]);
  };
  if (!is_encoded(format.key)) {
    std::memcpy(open, page, values_offset(format));
  } else {
    decode_keys(format, page, x);
    put(open);
  }
  if (!is_encoded(format.value)) {
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
