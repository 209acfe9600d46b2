#include "tensor/dtype.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace kvasir {
namespace {

struct Numbered {
  std::uint32_t number;
  DTypeTraits traits;
};

// From the published GGUF specification: number, name, elements and bytes of a block.
constexpr Numbered kTypes[] = {
    {0, {"F32", 1, 4}},         {1, {"F16", 1, 2}},         {2, {"Q4_0", 32, 18}},      {3, {"Q4_1", 32, 20}},
    {6, {"Q5_0", 32, 22}},      {7, {"Q5_1", 32, 24}},      {8, {"Q8_0", 32, 34}},      {9, {"Q8_1", 32, 36}},
    {10, {"Q2_K", 256, 84}},    {11, {"Q3_K", 256, 110}},   {12, {"Q4_K", 256, 144}},   {13, {"Q5_K", 256, 176}},
    {14, {"Q6_K", 256, 210}},   {15, {"Q8_K", 256, 292}},   {16, {"IQ2_XXS", 256, 66}}, {17, {"IQ2_XS", 256, 74}},
    {18, {"IQ3_XXS", 256, 98}}, {19, {"IQ1_S", 256, 50}},   {20, {"IQ4_NL", 32, 18}},   {21, {"IQ3_S", 256, 110}},
    {22, {"IQ2_S", 256, 82}},   {23, {"IQ4_XS", 256, 136}}, {24, {"I8", 1, 1}},         {25, {"I16", 1, 2}},
    {26, {"I32", 1, 4}},        {27, {"I64", 1, 8}},        {28, {"F64", 1, 8}},        {29, {"IQ1_M", 256, 56}},
    {30, {"BF16", 1, 2}},       {34, {"TQ1_0", 256, 54}},   {35, {"TQ2_0", 256, 66}},   {39, {"MXFP4", 32, 17}},
};

const DTypeTraits* find(std::uint32_t number) {
  for (const Numbered& t : kTypes)
    if (t.number == number) return &t.traits;
  return nullptr;
}

}  // namespace

const DTypeTraits& dtype_traits(DType type) {
  const DTypeTraits* traits = find(static_cast<std::uint32_t>(type));
  KVASIR_CHECK(traits != nullptr);
  return *traits;
}

std::span<const DType> all_dtypes() {
  static constexpr DType kAll[] = {DType::kF32,   DType::kF16,    DType::kQ4_0,    DType::kQ4_1,   DType::kQ5_0,
                                   DType::kQ5_1,  DType::kQ8_0,   DType::kQ2_K,    DType::kQ3_K,   DType::kQ4_K,
                                   DType::kQ5_K,  DType::kQ6_K,   DType::kIQ2_XXS, DType::kIQ2_XS, DType::kIQ3_XXS,
                                   DType::kIQ1_S, DType::kIQ4_NL, DType::kIQ3_S,   DType::kIQ2_S,  DType::kIQ4_XS,
                                   DType::kIQ1_M, DType::kBF16,   DType::kTQ1_0,   DType::kTQ2_0,  DType::kMXFP4};
  return kAll;
}

std::optional<DType> dtype_from_gguf(std::uint32_t number) {
  for (const DType type : all_dtypes())
    if (static_cast<std::uint32_t>(type) == number) return type;
  return std::nullopt;
}

std::optional<DTypeTraits> foreign_dtype(std::uint32_t number) {
  const DTypeTraits* traits = find(number);
  return traits ? std::optional(*traits) : std::nullopt;
}

float read_element(DType type, const std::byte* p) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return type == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude >= 0x38800000u) {
    const std::uint32_t rounded = magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u);
    return static_cast<std::uint16_t>(sign | rounded >> 13);
  }
  // Subnormal: adding 0.5 aligns the mantissa so that the hardware rounds to nearest even.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
}

std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace kvasir
