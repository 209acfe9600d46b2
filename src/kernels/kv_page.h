// The layout of a KV page: known here and in the kernels, nowhere else.
//
// A page holds the keys and values of one lane (one sequence, one layer, one KV head) for `slots` tokens:
//   keys   [head_dim][slots]   dimension-major: one query element is multiplied with all slots at once
//   values [slots][head_dim]   token-major: one weight is multiplied with a whole value
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir {

using SlotMask = std::uint64_t;  // bit s: slot s of a page

enum class KvType : std::uint8_t { kF32, kF16, kBF16 };

std::string_view kv_type_name(KvType type);  // "f32", "f16", "bf16"
std::optional<KvType> kv_type_from_name(std::string_view name);

struct KvPageShape {
  int head_dim = 0;
  int slots = 32;  // 16, 32 or 64
  KvType type = KvType::kF16;

  std::size_t element_bytes() const { return type == KvType::kF32 ? 4 : 2; }
  std::size_t values_offset() const { return element_bytes() * static_cast<std::size_t>(head_dim * slots); }
  std::size_t page_bytes() const { return 2 * values_offset(); }
};

// The slots [begin, end) of a page. REQUIRES: 0 <= begin <= end <= 64.
constexpr SlotMask slot_range(int begin, int end) {
  const SlotMask below_end = end >= 64 ? ~SlotMask{0} : (SlotMask{1} << end) - 1;
  const SlotMask below_begin = begin >= 64 ? ~SlotMask{0} : (SlotMask{1} << begin) - 1;
  return below_end & ~below_begin;
}

}  // namespace kvasir
