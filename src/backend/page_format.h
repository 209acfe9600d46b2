// What a page is, as all parts see it: a number, a format, a mask of slots, a place. How its bytes are laid out is
// known to the backend alone. Thread-safety: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// The number of a page in its pool.
enum class PageId : std::uint32_t {};

// Where the bytes of a page are.
enum class PagePlace : std::uint8_t { kMemory };

using SlotMask = std::uint64_t;  // bit s: slot s of a page

// How the elements of keys or of values are stored.
enum class KvType : std::uint8_t { kF32, kF16, kBF16 };

std::string_view kv_type_name(KvType type);  // "f32", "f16", "bf16"
std::optional<KvType> kv_type_from_name(std::string_view name);
[[gnu::always_inline]] constexpr std::size_t kv_type_bytes(KvType type) {
  return type == KvType::kF32 ? 4 : 2;
}

// What backends and traces may count on.
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxHeadDim = 512;

// A page holds the keys and values of one lane (one sequence, one layer, one KV head) for `slots` tokens. Pages of
// equal formats are interchangeable, and all of one size.
struct PageFormat {
  int head_dim = 0;           // 1 to kMaxHeadDim
  int slots = 32;             // 16, 32 or 64
  KvType key = KvType::kF16;  // of the keys
  KvType value = key;         // of the values

  // Bytes of one token's key and value.
  std::size_t slot_bytes() const {
    return static_cast<std::size_t>(head_dim) * (kv_type_bytes(key) + kv_type_bytes(value));
  }
  // Bytes of a page, whatever its layout.
  std::size_t bytes() const { return static_cast<std::size_t>(slots) * slot_bytes(); }
  bool operator==(const PageFormat&) const = default;
};

// "f16", or "k=f16,v=bf16" where keys and values differ.
std::string codec_name(const PageFormat& format);

// The slots [begin, end) of a page. REQUIRES: 0 <= begin <= end <= 64.
constexpr SlotMask slot_range(int begin, int end) {
  const SlotMask below_end = end >= 64 ? ~SlotMask{0} : (SlotMask{1} << end) - 1;
  const SlotMask below_begin = begin >= 64 ? ~SlotMask{0} : (SlotMask{1} << begin) - 1;
  return below_end & ~below_begin;
}

}  // namespace kvasir
