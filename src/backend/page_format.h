// What a page is, as all parts see it: a number, a format, a mask of slots, a place. How its bytes are laid out is
// known to the backend alone. Thread-safety: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// The number of a page in its pool. The upper bits say which of the pool's page classes it belongs to.
enum class PageId : std::uint32_t {};

// The pages of a pool that have one format.
enum class PageClass : std::uint8_t {};

inline constexpr int kPageNumberBits = 27;
inline constexpr std::size_t kMaxPageClasses = 31;
inline constexpr std::uint64_t kMaxPagesOfClass = std::uint64_t{1} << kPageNumberBits;

constexpr PageClass page_class(PageId page) {
  return static_cast<PageClass>(static_cast<std::uint32_t>(page) >> kPageNumberBits);
}
constexpr std::size_t page_number(PageId page) {
  return static_cast<std::uint32_t>(page) & (kMaxPagesOfClass - 1);
}
constexpr PageId page_id(PageClass of, std::uint64_t number) {
  return static_cast<PageId>(static_cast<std::uint32_t>(of) << kPageNumberBits | static_cast<std::uint32_t>(number));
}

// Where the bytes of a page are.
enum class PagePlace : std::uint8_t { kMemory };

using SlotMask = std::uint64_t;  // bit s: slot s of a page

// How the elements of keys or of values are stored. The codecs from kQ8 on lose bits: a page is written in 16 bits and
// encoded as a whole once it is sealed (page_layout.h has the layouts).
//   i16  integers of 13 bits in 16, a scale for a token's key and one for its value: attention multiplies integers,
//        twice as many at a time as floats
//   q8   8 bits, symmetric, a scale for 32 elements of one token
//   q4   4 bits, a scale and a least value for a group: of keys 32 tokens of one channel, of values 32 channels of one
//        token (KIVI, Liu et al., arXiv 2402.02750, section 3.2)
//   q4o  q4 of what is left when the hundredth of the elements that lies farthest from the middle of its group is kept
//        as it is, in 16 bits
//   q3, q2  as q4, with 3 and 2 bits
enum class KvType : std::uint8_t { kF32, kF16, kBF16, kI16, kQ8, kQ4, kQ4O, kQ3, kQ2 };

std::string_view kv_type_name(KvType type);  // "f32", "f16", ...
std::optional<KvType> kv_type_from_name(std::string_view name);
std::vector<std::string_view> kv_type_names();

// Whether pages of this type are encoded when they are sealed.
[[gnu::always_inline]] constexpr bool is_encoded(KvType type) {
  return type >= KvType::kQ8;
}
// Whether elements are stored as floats.
[[gnu::always_inline]] constexpr bool has_floats(KvType type) {
  return type < KvType::kI16;
}
// Bytes of an element. REQUIRES: has_floats(type).
[[gnu::always_inline]] constexpr std::size_t kv_type_bytes(KvType type) {
  return type == KvType::kF32 ? 4 : 2;
}

// Limits that hold for all backends and traces.
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxHeadDim = 576;   // of latent pages
inline constexpr int kMaxValueDim = 512;  // of others

// A page holds the keys and values of one lane (one sequence, one layer, one KV head) for `slots` tokens. Pages of
// equal formats are interchangeable, and all of one size.
struct PageFormat {
  int head_dim = 0;           // 1 to kMaxValueDim, of latent pages to kMaxHeadDim
  int slots = 32;             // 16, 32 or 64
  KvType key = KvType::kF16;  // of the keys
  KvType value = key;         // of the values
  // Keys, or values, are multiplied with a Walsh-Hadamard matrix before they are stored, in blocks of the largest power
  // of two that divides head_dim. Queries, or the sums of values, are multiplied likewise, so products stay the same.
  bool hadamard_keys = false;
  bool hadamard_values = false;
  int rotation = 0;  // keys are rotated by this one of BackendShape::rotations
  // Values are the keys, as they are stored: the page has no others. `value` and hadamard_values mean nothing.
  bool latent = false;

  bool encoded() const { return is_encoded(key) || (is_encoded(value) && !latent); }
  // Whether sums of values are to be transformed back.
  bool transforms_values() const { return latent ? hadamard_keys : hadamard_values; }
  // Returns the format of pages before they are sealed: 16 bits in place of codecs.
  PageFormat open() const {
    PageFormat format = *this;
    if (is_encoded(key)) format.key = KvType::kF16;
    if (is_encoded(value)) format.value = KvType::kF16;
    return format;
  }

  // Bytes of a page's keys, and of its values.
  std::size_t key_bytes() const;
  std::size_t value_bytes() const;
  // Bytes of a page, whatever its layout.
  std::size_t bytes() const { return key_bytes() + value_bytes(); }
  // Bytes of one token's key and value: its share of a page, rounded up.
  std::size_t slot_bytes() const {
    const auto count = static_cast<std::size_t>(slots);
    return (bytes() + count - 1) / count;
  }
  // Bytes of one token's key and value where the format is not encoded.
  std::size_t row_bytes() const { return bytes() / static_cast<std::size_t>(slots); }
  bool operator==(const PageFormat&) const = default;
};

// How a cache stores keys and values: the format of its pages, and how many of the newest tokens stay in 16 bits
// beyond the page that is being filled (KIVI's residual).
struct KvCodec {
  KvType key = KvType::kF16;
  KvType value = key;
  int recent = 0;
  bool hadamard_keys = false;
  bool hadamard_values = false;
  // Keys are rotated by the angles for long sequences, of models that have two sets of angles (LongRoPE).
  bool long_rotation = false;

  bool operator==(const KvCodec&) const = default;
};

inline constexpr int kMaxRecent = 4096;

// Reads a codec: "q4", "k=q8,v=q4", "q4,recent=64", "q4,rotate=k" (k, v, kv or off; default: what measured best for
// each type), "f16,rope=long" (long_rotation). On failure `error` says what is wrong.
struct ParsedCodec {
  KvCodec codec;
  std::string error;  // empty: none
};
ParsedCodec parse_codec(std::string_view text);

// Divides a list of codecs at its commas: "q8,k=q8,v=q4,recent=64" is q8 and k=q8,v=q4,recent=64. A type, or a side
// that was named already, begins a new codec.
std::vector<std::string> split_codecs(std::string_view list);

// Returns the shortest text that parse_codec reads as this: "f16", "k=f16,v=bf16", "q4,recent=64".
std::string codec_name(const KvCodec& codec);
// Of pages; says nothing about `recent`.
std::string codec_name(const PageFormat& format);

// The same for files, which must not depend on the defaults of parse_codec: every rotation is named, and a text that
// names none means none.
ParsedCodec parse_stored_codec(std::string_view text);
std::string stored_codec_name(const KvCodec& codec);
std::string stored_codec_name(const PageFormat& format);

// The slots [begin, end) of a page. REQUIRES: 0 <= begin <= end <= 64.
constexpr SlotMask slot_range(int begin, int end) {
  const SlotMask below_end = end >= 64 ? ~SlotMask{0} : (SlotMask{1} << end) - 1;
  const SlotMask below_begin = begin >= 64 ? ~SlotMask{0} : (SlotMask{1} << begin) - 1;
  return below_end & ~below_begin;
}

}  // namespace kvasir
