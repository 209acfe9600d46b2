// GGUF's element types of tensors, and conversion of single elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvasir {

// Values are GGUF's tensor type numbers (ggml_type).
enum class DType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
};

struct DTypeTraits {
  std::string_view name;         // as GGUF tools print it: "F32", "Q8_0"
  std::uint32_t block_elements;  // consecutive elements of a row that are stored together
  std::uint32_t block_bytes;
};

// True for types stored in blocks of several elements with a common scale.
constexpr bool is_quantized(DType type) {
  return type != DType::kF32 && type != DType::kF16 && type != DType::kBF16;
}

// REQUIRES: a declared enumerator.
const DTypeTraits& dtype_traits(DType type);

// Returns every enumerator, ordered by number.
std::span<const DType> all_dtypes();

// Returns nullopt for types Kvasir cannot compute with (see foreign_dtype for their size and name).
std::optional<DType> dtype_from_gguf(std::uint32_t number);

// Describes every type GGUF defines, including those Kvasir cannot compute with, so that any file can be listed and
// bounds-checked. Returns nullopt for unknown and withdrawn numbers.
std::optional<DTypeTraits> foreign_dtype(std::uint32_t number);

// Reads one element; `p` need not be aligned. REQUIRES: F32, F16 or BF16.
float read_element(DType type, const std::byte* p);

// Convert IEEE 754 binary16 and bfloat16, given as bits. Rounding is to nearest even; NaN stays NaN, and what overflows
// f16 becomes infinity. Those that widen are inlined everywhere, since kernels of all instruction sets use them.
[[gnu::always_inline]] inline float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return __builtin_bit_cast(float, sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return __builtin_bit_cast(float, sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign != 0 ? -subnormal : subnormal;
}
[[gnu::always_inline]] inline float bf16_to_f32(std::uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}
std::uint16_t f32_to_f16(float value);
std::uint16_t f32_to_bf16(float value);

}  // namespace kvasir
