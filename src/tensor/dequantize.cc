#include "tensor/dequantize.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "tensor/grids.h"

namespace kvasir {
namespace {

int byte_at(const std::byte* p, int index) {
  return std::to_integer<int>(p[index]);
}

float half_at(const std::byte* p, int offset) {
  std::uint16_t bits;
  std::memcpy(&bits, p + offset, sizeof bits);
  return f16_to_f32(bits);
}

// Returns nibble i of 16 bytes: the low nibbles are values 0 to 15, the high ones 16 to 31.
int nibble(const std::byte* p, int i) {
  return byte_at(p, i % 16) >> (i / 16 * 4) & 15;
}

void q4_0(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(block + 2, i) - 8);
}

void q4_1(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  const float m = half_at(block, 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(block + 4, i)) + m;
}

int five_bits(const std::byte* high, const std::byte* low, int i) {
  return nibble(low, i) | (byte_at(high, i / 8) >> (i % 8) & 1) << 4;
}

void q5_0(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(five_bits(block + 2, block + 6, i) - 16);
}

void q5_1(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  const float m = half_at(block, 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(five_bits(block + 4, block + 8, i)) + m;
}

void q8_0(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
}

// Q2_K: 16 parts of 16 values, each with a 4-bit scale and a 4-bit minimum. Two bits per value: 32 bytes hold 128
// values, 32 at each bit-pair position.
void q2_k(const std::byte* block, float* out) {
  const std::byte* quants = block + 16;
  const float d = half_at(block, 80);
  const float m = half_at(block, 82);
  for (int i = 0; i < 256; ++i) {
    const int scales = byte_at(block, i / 16);
    const int q = byte_at(quants, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3;
    out[i] = d * static_cast<float>(scales & 15) * static_cast<float>(q) - m * static_cast<float>(scales >> 4);
  }
}

// Q3_K: 16 parts of 16 values, each with a 6-bit scale less 32: low four bits in the nibbles of bytes 0 to 7, high two
// in bit pairs of bytes 8 to 11. A value is its two bits less 4 unless its high bit is set.
int q3_k_scale(const std::byte* scales, int part) {
  const int low = byte_at(scales, part % 8) >> (part / 8 * 4) & 15;
  const int high = byte_at(scales, 8 + part % 4) >> (part / 4 * 2) & 3;
  return (low | high << 4) - 32;
}

void q3_k(const std::byte* block, float* out) {
  const std::byte* quants = block + 32;
  const float d = half_at(block, 108);
  for (int i = 0; i < 256; ++i) {
    const int low = byte_at(quants, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3;
    const int high = byte_at(block, i % 32) >> (i / 32) & 1;
    out[i] = d * static_cast<float>(q3_k_scale(block + 96, i / 16)) * static_cast<float>(low - (high != 0 ? 0 : 4));
  }
}

// Q4_K and Q5_K: 8 parts of 32 values with 6-bit scales and minima in 12 bytes. Parts 0 to 3: the low six bits of bytes
// 0 to 3 (scales) and 4 to 7 (minima). Parts 4 to 7: low four bits in the nibbles of bytes 8 to 11, high two in the
// high bits of bytes 0 to 7.
struct ScaleAndMinimum {
  float scale;
  float minimum;
};
ScaleAndMinimum six_bits(const std::byte* p, int part) {
  if (part < 4) return {static_cast<float>(byte_at(p, part) & 63), static_cast<float>(byte_at(p, part + 4) & 63)};
  const int low = byte_at(p, part + 4);
  return {static_cast<float>((low & 15) | byte_at(p, part - 4) >> 6 << 4),
          static_cast<float>(low >> 4 | byte_at(p, part) >> 6 << 4)};
}

// Parts 2n and 2n + 1 are the low and high nibbles of 32 bytes.
int k_nibble(const std::byte* quants, int i) {
  return byte_at(quants, i / 64 * 32 + i % 32) >> (i / 32 % 2 * 4) & 15;
}

void q4_k(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  const float m = half_at(block, 2);
  for (int i = 0; i < 256; ++i) {
    const ScaleAndMinimum part = six_bits(block + 4, i / 32);
    out[i] = d * part.scale * static_cast<float>(k_nibble(block + 16, i)) - m * part.minimum;
  }
}

void q5_k(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  const float m = half_at(block, 2);
  for (int i = 0; i < 256; ++i) {
    const ScaleAndMinimum part = six_bits(block + 4, i / 32);
    const int q = k_nibble(block + 48, i) | (byte_at(block + 16, i % 32) >> (i / 32) & 1) << 4;
    out[i] = d * part.scale * static_cast<float>(q) - m * part.minimum;
  }
}

// Q6_K: 16 parts of 16 values with signed 8-bit scales. Of 128 values, 64 bytes hold the low nibbles (64 values in the
// low, 64 in the high ones), 32 bytes the high bit pairs.
void q6_k(const std::byte* block, float* out) {
  const float d = half_at(block, 208);
  for (int i = 0; i < 256; ++i) {
    const int low = byte_at(block, i / 128 * 64 + i % 64) >> (i / 64 % 2 * 4) & 15;
    const int high = byte_at(block + 128, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3;
    const auto scale = static_cast<std::int8_t>(block[192 + i / 16]);
    out[i] = d * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
  }
}

void iq4_nl(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kIq4Values[nibble(block + 2, i)]);
}

// IQ4_XS: 8 parts of 32 values, each with a 6-bit scale less 32: low four bits in nibbles, high two in a 16-bit word.
void iq4_xs(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 256; ++i) {
    const int part = i / 32;
    const int low = byte_at(block + 4, part / 2) >> (part % 2 * 4) & 15;
    const int high = byte_at(block + 2, part / 4) >> (part % 4 * 2) & 3;
    out[i] = d * static_cast<float>((low | high << 4) - 32) *
             static_cast<float>(kIq4Values[nibble(block + 8 + part * 16, i % 32)]);
  }
}

// MXFP4: a scale of eight bits, the exponent of a power of two, and 32 nibbles.
void mxfp4(const std::byte* block, float* out) {
  const float d = half_of_e8m0(std::to_integer<std::uint32_t>(block[0]));
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kMxfp4Values[nibble(block + 1, i)]);
}

std::uint32_t word_at(const std::byte* p, int offset) {
  std::uint32_t bits;
  std::memcpy(&bits, p + offset, sizeof bits);
  return bits;
}

std::uint32_t short_at(const std::byte* p, int offset) {
  std::uint16_t bits;
  std::memcpy(&bits, p + offset, sizeof bits);
  return bits;
}

// The formats IQ1, IQ2 and IQ3 index grids of eight or four values at once: see grids.h.
int code_of_eight(std::uint32_t entry, int i) {
  return static_cast<int>(entry >> (i % 4 * 8 + i / 4 * 4) & 15);
}
int code_of_four(std::uint32_t entry, int i) {
  return static_cast<int>(entry >> (i * 8) & 15);
}

float signed_value(int magnitude, std::uint32_t signs, int i) {
  return static_cast<float>((signs >> i & 1) != 0 ? -magnitude : magnitude);
}
// Seven signs; the eighth makes their number even.
std::uint32_t eight_signs(std::uint32_t seven) {
  return seven | static_cast<std::uint32_t>(std::popcount(seven) & 1) << 7;
}

// IQ2_XXS: 8 parts of 32 values, each with four 8-bit indices and a word: four times seven signs, and a 4-bit scale.
void iq2_xxs(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 256; ++i) {
    const std::byte* part = block + 2 + i / 32 * 8;
    const std::uint32_t word = word_at(part, 4);
    const int code = code_of_eight(kIq2XxsGrid[static_cast<std::size_t>(byte_at(part, i / 8 % 4))], i % 8);
    out[i] =
        d * (0.5F + static_cast<float>(word >> 28)) * 0.25F *
        signed_value(kIq2Magnitudes[static_cast<std::size_t>(code)], eight_signs(word >> (i / 8 % 4 * 7) & 127), i % 8);
  }
}

// IQ2_XS: 16 bits for each eight values, an index of nine and seven signs; 4-bit scales of 16 values.
void iq2_xs(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 256; ++i) {
    const std::uint32_t both = short_at(block, 2 + i / 8 * 2);
    const int scale = byte_at(block, 66 + i / 32) >> (i / 16 % 2 * 4) & 15;
    const int code = code_of_eight(kIq2XsGrid[both & 511], i % 8);
    out[i] = d * (0.5F + static_cast<float>(scale)) * 0.25F *
             signed_value(kIq2Magnitudes[static_cast<std::size_t>(code)], eight_signs(both >> 9), i % 8);
  }
}

// IQ2_S: the low eight bits of all indices, all signs, the high two bits of indices, 4-bit scales of 16 values.
void iq2_s(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 256; ++i) {
    const int high = byte_at(block, 66 + i / 32) >> (i / 8 % 4 * 2) & 3;
    const int scale = byte_at(block, 74 + i / 32) >> (i / 16 % 2 * 4) & 15;
    const auto index = static_cast<std::size_t>(byte_at(block, 2 + i / 8) | high << 8);
    const int code = code_of_eight(kIq2SGrid[index], i % 8);
    out[i] = d * (0.5F + static_cast<float>(scale)) * 0.25F *
             signed_value(kIq2Magnitudes[static_cast<std::size_t>(code)],
                          static_cast<std::uint32_t>(byte_at(block, 34 + i / 8)), i % 8);
  }
}

// IQ3_XXS: 8-bit indices of four values each; then words as of IQ2_XXS.
void iq3_xxs(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 256; ++i) {
    const std::uint32_t word = word_at(block, 66 + i / 32 * 4);
    const int code = code_of_four(kIq3XxsGrid[static_cast<std::size_t>(byte_at(block, 2 + i / 4))], i % 4);
    out[i] = d * (0.5F + static_cast<float>(word >> 28)) * 0.5F *
             signed_value(kIq3XxsMagnitudes[static_cast<std::size_t>(code)], eight_signs(word >> (i / 8 % 4 * 7) & 127),
                          i % 8);
  }
}

// IQ3_S: the low eight bits of indices, the ninth, all signs, 4-bit scales of 32 values.
void iq3_s(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 256; ++i) {
    const int high = byte_at(block, 66 + i / 32) >> (i / 4 % 8) & 1;
    const int scale = byte_at(block, 106 + i / 64) >> (i / 32 % 2 * 4) & 15;
    const auto index = static_cast<std::size_t>(byte_at(block, 2 + i / 4) | high << 8);
    const int code = code_of_four(kIq3SGrid[index], i % 4);
    out[i] = d * static_cast<float>(2 * scale + 1) *
             signed_value(kIq3SMagnitudes[static_cast<std::size_t>(code)],
                          static_cast<std::uint32_t>(byte_at(block, 74 + i / 8)), i % 8);
  }
}

// A value of IQ1: -1, 0 or 1, and an eighth more or less.
float shifted_value(std::size_t index, bool less, int i) {
  return static_cast<float>(code_of_eight(kIq1Grid[index], i) - 1) + (less ? -0.125F : 0.125F);
}

// IQ1_S: the low eight bits of all indices; 16 bits for each 32 values: the high three bits of four indices, a 3-bit
// scale, and whether values are an eighth less.
void iq1_s(const std::byte* block, float* out) {
  const float d = half_at(block, 0);
  for (int i = 0; i < 256; ++i) {
    const std::uint32_t high = short_at(block, 34 + i / 32 * 2);
    const auto index = static_cast<std::size_t>(byte_at(block, 2 + i / 8)) | (high >> (i / 8 % 4 * 3) & 7) << 8;
    out[i] = d * static_cast<float>(2 * (high >> 12 & 7) + 1) * shifted_value(index, high >> 15 != 0, i % 8);
  }
}

// IQ1_M: the low eight bits of all indices; a nibble for each, its high three bits and whether values are an eighth
// less; four times 16 bits: four 3-bit scales of 16 values, and four bits of the scale of scales.
void iq1_m(const std::byte* block, float* out) {
  std::uint32_t bits = 0;
  for (int n = 0; n < 4; ++n) bits |= short_at(block, 48 + 2 * n) >> 12 << (4 * n);
  const float d = f16_to_f32(static_cast<std::uint16_t>(bits));
  for (int i = 0; i < 256; ++i) {
    const std::uint32_t scale = short_at(block, 48 + i / 64 * 2) >> (i / 16 % 4 * 3) & 7;
    const int high = byte_at(block, 32 + i / 16) >> (i / 8 % 2 * 4);
    const auto index = static_cast<std::size_t>(byte_at(block, i / 8) | (high & 7) << 8);
    out[i] = d * static_cast<float>(2 * scale + 1) * shifted_value(index, (high & 8) != 0, i % 8);
  }
}

// TQ1_0: digits of base three, five to a byte: 32 bytes, then 16, then four bytes of four digits each. A byte is the
// fraction of 256 whose first digits they are, rounded up.
void tq1_0(const std::byte* block, float* out) {
  static constexpr int kPowers[5] = {1, 3, 9, 27, 81};
  const float d = half_at(block, 52);
  for (int i = 0; i < 256; ++i) {
    const int at = i < 160 ? i % 32 : i < 240 ? 32 + (i - 160) % 16 : 48 + (i - 240) % 4;
    const int digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    out[i] = d * static_cast<float>(((byte_at(block, at) * kPowers[digit] & 255) * 3 >> 8) - 1);
  }
}

// TQ2_0: two bits per value, as of Q2_K.
void tq2_0(const std::byte* block, float* out) {
  const float d = half_at(block, 64);
  for (int i = 0; i < 256; ++i)
    out[i] = d * static_cast<float>((byte_at(block, i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 3) - 1);
}

}  // namespace

void dequantize_block(DType type, const std::byte* block, float* out) {
  switch (type) {
    case DType::kQ4_0: return q4_0(block, out);
    case DType::kQ4_1: return q4_1(block, out);
    case DType::kQ5_0: return q5_0(block, out);
    case DType::kQ5_1: return q5_1(block, out);
    case DType::kQ8_0: return q8_0(block, out);
    case DType::kQ2_K: return q2_k(block, out);
    case DType::kQ3_K: return q3_k(block, out);
    case DType::kQ4_K: return q4_k(block, out);
    case DType::kQ5_K: return q5_k(block, out);
    case DType::kQ6_K: return q6_k(block, out);
    case DType::kIQ4_NL: return iq4_nl(block, out);
    case DType::kIQ4_XS: return iq4_xs(block, out);
    case DType::kIQ2_XXS: return iq2_xxs(block, out);
    case DType::kIQ2_XS: return iq2_xs(block, out);
    case DType::kIQ2_S: return iq2_s(block, out);
    case DType::kIQ3_XXS: return iq3_xxs(block, out);
    case DType::kIQ3_S: return iq3_s(block, out);
    case DType::kIQ1_S: return iq1_s(block, out);
    case DType::kIQ1_M: return iq1_m(block, out);
    case DType::kTQ1_0: return tq1_0(block, out);
    case DType::kTQ2_0: return tq2_0(block, out);
    case DType::kMXFP4: return mxfp4(block, out);
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: break;
  }
  KVASIR_CHECK(false);
}

}  // namespace kvasir
