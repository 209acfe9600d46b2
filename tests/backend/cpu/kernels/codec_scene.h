// What codecs make of the elements of a page, computed element by element in double and without any layout.
#pragma once

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/cpu/kernels/attention_scene.h"
#include "backend/cpu/kernels/pages/encode_page.h"
#include "tensor/dtype.h"

namespace kvasir::test {

inline constexpr KvType kCodecs[] = {KvType::kQ8, KvType::kQ4, KvType::kQ4O, KvType::kQ3, KvType::kQ2};

// One side of a page: [slots][head_dim].
using Side = std::vector<float>;

inline double half(double x) {
  return double{f16_to_f32(f32_to_f16(static_cast<float>(x)))};
}

inline int bits_of(KvType type) {
  return type == KvType::kQ8 ? 8 : type == KvType::kQ3 ? 3 : type == KvType::kQ2 ? 2 : 4;
}

// The groups of a side, as lists of elements [slot * head_dim + dimension].
inline std::vector<std::vector<int>> groups_of(KvType type, bool keys, int slots, int dim) {
  std::vector<std::vector<int>> groups;
  if (keys && type != KvType::kQ8) {
    for (int d = 0; d < dim; ++d)
      for (int first = 0; first < slots; first += 32) {
        std::vector<int>& group = groups.emplace_back();
        for (int s = first; s < std::min(first + 32, slots); ++s) group.push_back(s * dim + d);
      }
    return groups;
  }
  for (int s = 0; s < slots; ++s)
    for (int first = 0; first < dim; first += 32) {
      std::vector<int>& group = groups.emplace_back();
      for (int d = first; d < std::min(first + 32, dim); ++d) group.push_back(s * dim + d);
    }
  return groups;
}

// Of groups whose elements are live.
inline void keep_apart(const std::vector<std::vector<int>>& groups, const Side& x, int slots, int dim, bool keys,
                       std::vector<bool>& apart) {
  std::vector<std::tuple<double, int, int>> order;  // the farthest first, then by place on the page
  for (const std::vector<int>& group : groups) {
    if (group.empty()) continue;
    float least = x[static_cast<std::size_t>(group[0])], most = least;
    for (const int i : group) {
      least = std::min(least, x[static_cast<std::size_t>(i)]);
      most = std::max(most, x[static_cast<std::size_t>(i)]);
    }
    const float middle = (least + most) / 2;
    for (const int i : group) {
      const int place = keys ? i % dim * slots + i / dim : i;
      order.emplace_back(-std::fabs(x[static_cast<std::size_t>(i)] - middle), place, i);
    }
  }
  std::sort(order.begin(), order.end());
  const std::size_t count = std::min<std::size_t>(order.size(), static_cast<std::size_t>((slots * dim + 99) / 100));
  for (std::size_t i = 0; i < count; ++i) apart[static_cast<std::size_t>(std::get<2>(order[i]))] = true;
}

// What a codec makes of a side; of slots outside `live`, anything.
inline Side expected(KvType type, bool keys, const Side& x, SlotMask live, int slots, int dim) {
  Side out = x;
  std::vector<bool> apart(x.size());
  std::vector<std::vector<int>> groups = groups_of(type, keys, slots, dim);
  for (std::vector<int>& group : groups) std::erase_if(group, [&](int i) { return (live >> (i / dim) & 1) == 0; });
  if (type == KvType::kQ4O) keep_apart(groups, x, slots, dim, keys, apart);
  for (const std::vector<int>& group : groups) {
    double least = 0, most = 0, magnitude = 0;
    bool any = false;
    for (const int i : group) {
      if (apart[static_cast<std::size_t>(i)]) continue;
      const double value = double{x[static_cast<std::size_t>(i)]};
      least = any ? std::min(least, value) : value;
      most = any ? std::max(most, value) : value;
      magnitude = std::max(magnitude, std::fabs(value));
      any = true;
    }
    const int levels = (1 << bits_of(type)) - 1;
    const bool symmetric = type == KvType::kQ8;
    const double zero = symmetric ? 0 : half(least);
    const double scale =
        half(symmetric ? std::max(magnitude / 127, 1e-8)
                       : static_cast<double>(static_cast<float>(most) - static_cast<float>(zero)) / levels);
    for (const int i : group) {
      if (apart[static_cast<std::size_t>(i)]) continue;
      const float distance = static_cast<float>(x[static_cast<std::size_t>(i)] - static_cast<float>(zero));
      const double steps = scale > 0 ? double{distance / static_cast<float>(scale)} : 0;
      const double code = std::nearbyint(symmetric ? std::clamp(steps, -127.0, 127.0)
                                                   : std::clamp(steps, 0.0, static_cast<double>(levels)));
      out[static_cast<std::size_t>(i)] = static_cast<float>(zero + scale * code);
    }
  }
  return out;
}

struct Encoded {
  Side keys;
  Side values;
  std::vector<std::byte> open;
  std::vector<std::byte> page;
};

inline float outlying(Random& random, int dimension) {
  const float x = random.symmetric(2.0F);
  return random.below(40) == 0 ? x * 12 : dimension % 7 == 3 ? x + 9 : x;
}

inline Encoded encode_random(const PageFormat& format, SlotMask live, Random& random) {
  Encoded encoded;
  const auto count = static_cast<std::size_t>(format.slots * format.head_dim);
  encoded.open.resize(format.open().bytes());
  encoded.page.resize(format.bytes());
  encoded.keys.resize(count);
  encoded.values.resize(count);
  for (int s = 0; s < format.slots; ++s) {
    std::vector<float> key, value;
    for (int d = 0; d < format.head_dim; ++d) {
      key.push_back(outlying(random, d));
      value.push_back(outlying(random, d));
    }
    generic_kernels().store_kv(format.open(), encoded.open.data(), s, key.data(), value.data());
    for (int d = 0; d < format.head_dim; ++d) {
      const auto at = static_cast<std::size_t>(s * format.head_dim + d);
      encoded.keys[at] = round_to(format.open().key, key[static_cast<std::size_t>(d)]);
      encoded.values[at] = round_to(format.open().value, value[static_cast<std::size_t>(d)]);
    }
  }
  encode_page(format, encoded.open.data(), live, encoded.page.data());
  return encoded;
}

}  // namespace kvasir::test
