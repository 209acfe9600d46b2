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
  KvType type;
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

void put_codes(KvType type, const std::uint8_t* code, int count, std::byte* out) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(out);
  std::memset(bytes, 0, code_bytes(type, count));
  if (type == KvType::kQ4 || type == KvType::kQ4O) {
    const int half = (count + 1) / 2;
    for (int i = 0; i < count; ++i) bytes[i % half] |= static_cast<std::uint8_t>(code[i] << (4 * (i / half)));
    return;
  }
  const int quarter = (count + 3) / 4;
  for (int i = 0; i < count; ++i) bytes[i % quarter] |= static_cast<std::uint8_t>((code[i] & 3) << (2 * (i / quarter)));
  if (type != KvType::kQ3) return;
  const int eighth = (count + 7) / 8;
  for (int i = 0; i < count; ++i)
    bytes[quarter + i % eighth] |= static_cast<std::uint8_t>((code[i] >> 2) << (i / eighth));
}

// A code is the element's distance from the least one in steps of the scale, both as their 16 bits say.
void encode_group(KvType type, const float* x, const bool* taken, int count, std::byte* codes, std::byte* scales) {
  const Ends ends = ends_of(x, taken, count);
  const auto levels = static_cast<float>((1 << code_bits(type)) - 1);
  std::uint8_t code[kCodecGroup] = {};
  if (!ends.finite) {
    // It shows in every product with the group.
    put_half(scales, std::numeric_limits<float>::quiet_NaN());
    put_half(scales + 2, std::numeric_limits<float>::quiet_NaN());
  } else {
    put_half(scales + 2, ends.least);
    const float least = half_at(scales + 2);
    put_half(scales, (ends.most - least) / levels);
    const float scale = half_at(scales);
    for (int i = 0; i < count; ++i) {
      if (!taken[i] || scale <= 0) continue;
      code[i] = static_cast<std::uint8_t>(nearest(std::clamp((x[i] - least) / scale, 0.0F, levels)));
    }
  }
  put_codes(type, code, count, codes);
}

// Takes the elements farthest from the middle of their group out of `taken` and writes them, in order of place.
void keep_apart(const Side& side, int apart, std::byte* out) {
  static_assert(kMaxHeadDim * 64 <= 32768);
  float distance[kMaxHeadDim * 64];
  std::uint16_t place[kMaxHeadDim * 64];
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

void encode_side(const Side& side, int apart, std::byte* out) {
  std::byte* codes = out;
  std::byte* scales = out + static_cast<std::size_t>(side.rows) * row_code_bytes(side.type, side.count);
  if (side.type == KvType::kQ4O)
    keep_apart(side, apart, scales + static_cast<std::size_t>(side.rows * code_groups(side.count)) * 4);
  for (int row = 0; row < side.rows; ++row)
    for (int group = 0; group < code_groups(side.count); ++group, scales += 4) {
      const int first = row * side.count + group * kCodecGroup;
      const int size = group_size(side.count, group);
      encode_group(side.type, side.x + first, side.taken + first, size, codes, scales);
      codes += code_bytes(side.type, size);
    }
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

void encode_q8_keys(const PageFormat& format, const float* x, SlotMask live, std::byte* out) {
  auto* codes = reinterpret_cast<std::int8_t*>(out);
  std::byte* scales = out + static_cast<std::size_t>(format.head_dim * format.slots);
  for (int group = 0; group < code_groups(format.head_dim); ++group)
    for (int s = 0; s < format.slots; ++s, scales += 2) {
      const int begin = group * kCodecGroup;
      const int end = begin + group_size(format.head_dim, group);
      const bool taken = (live >> s & 1) != 0;
      float most = 0;
      for (int d = begin; taken && d < end; ++d) most = greater_magnitude(most, x[d * format.slots + s]);
      const float scale = q8_scale(most, scales);
      for (int d = begin; d < end; ++d)
        codes[d * format.slots + s] = taken ? q8_code(x[d * format.slots + s], scale) : std::int8_t{0};
    }
}

void encode_q8_values(const PageFormat& format, const float* x, SlotMask live, std::byte* out) {
  auto* codes = reinterpret_cast<std::int8_t*>(out);
  std::byte* scales = out + static_cast<std::size_t>(format.head_dim * format.slots);
  for (int s = 0; s < format.slots; ++s)
    for (int group = 0; group < code_groups(format.head_dim); ++group, scales += 2) {
      const int size = group_size(format.head_dim, group);
      const bool taken = (live >> s & 1) != 0;
      float most = 0;
      for (int i = 0; taken && i < size; ++i) most = greater_magnitude(most, x[i]);
      const float scale = q8_scale(most, scales);
      for (int i = 0; i < size; ++i) codes[i] = taken ? q8_code(x[i], scale) : std::int8_t{0};
      codes += size;
      x += size;
    }
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
  float x[kMaxHeadDim * 64];
  bool taken[kMaxHeadDim * 64];
  if (!is_encoded(format.key)) {
    std::memcpy(page, open, values_offset(format));
  } else {
    decode_keys(plain, open, x);
    if (format.key == KvType::kQ8) {
      encode_q8_keys(format, x, live, page);
    } else {
      for (int i = 0; i < elements; ++i) taken[i] = (live >> (i % format.slots) & 1) != 0;
      encode_side({format.key, format.head_dim, format.slots, x, taken}, outliers(format), page);
    }
  }
  std::byte* values = page + values_offset(format);
  if (!is_encoded(format.value)) {
    std::memcpy(values, open + values_offset(plain), value_side_bytes(format));
  } else {
    decode_values(plain, open, x);
    if (format.value == KvType::kQ8) {
      encode_q8_values(format, x, live, values);
    } else {
      for (int i = 0; i < elements; ++i) taken[i] = (live >> (i / format.head_dim) & 1) != 0;
      encode_side({format.value, format.slots, format.head_dim, x, taken}, outliers(format), values);
    }
  }
}

void decode_to_open(const PageFormat& format, const std::byte* page, std::byte* open) {
  const PageFormat plain = format.open();
  const int elements = format.head_dim * format.slots;
  float x[kMaxHeadDim * 64];
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
