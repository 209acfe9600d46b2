#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace kvasir {
namespace {

constexpr std::uint32_t kF32Infinity = 0x7f800000;

bool is_nan16(std::uint32_t bits, std::uint32_t infinity) {
  return (bits & 0x7fff) > infinity;
}

// The definition of IEEE 754 binary16, in double.
double f16_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double magnitude = exponent == 31  ? std::numeric_limits<double>::infinity()
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

// Of the 16-bit patterns around `value`, the nearest; of two, the even one. `value_of` must be monotonic over the
// patterns from 0 to `infinity`; infinity counts as the power of two after the largest finite value.
template <class ValueOf>
std::uint16_t nearest(float value, std::uint32_t infinity, double beyond, ValueOf value_of) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double wanted = std::fabs(static_cast<double>(value));
  if (wanted >= beyond) return static_cast<std::uint16_t>(sign | infinity);
  std::uint32_t low = 0;
  std::uint32_t high = infinity;  // value_of(low) <= wanted < value_of(high)
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (value_of(static_cast<std::uint16_t>(middle)) <= wanted ? low : high) = middle;
  }
  const double above = high == infinity ? beyond : value_of(static_cast<std::uint16_t>(high));
  const double down = wanted - value_of(static_cast<std::uint16_t>(low));
  const double up = above - wanted;
  const std::uint32_t chosen = down < up ? low : up < down ? high : low % 2 == 0 ? low : high;
  return static_cast<std::uint16_t>(sign | chosen);
}

std::uint16_t nearest_f16(float value) {
  return nearest(value, 0x7c00, 65536.0, f16_value);
}

double bf16_value(std::uint16_t bits) {
  const int exponent = bits >> 7 & 0xff;
  const int mantissa = bits & 0x7f;
  return exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134);
}

std::uint16_t nearest_bf16(float value) {
  return nearest(value, 0x7f80, std::ldexp(1.0, 128), bf16_value);
}

// Random bit patterns, and every value and midpoint of the 16-bit type given by `widen` with their neighbours.
template <class Widen>
std::vector<float> samples(Widen widen, std::uint32_t infinity) {
  std::vector<float> out = {0.0f,
                            -0.0f,
                            65504.0f,
                            65519.0f,
                            65519.996f,
                            65520.0f,
                            65536.0f,
                            -65520.0f,
                            0x1p-24f,
                            0x1p-25f,
                            0x1.000002p-25f,
                            0x1p-26f,
                            0x1p-149f,
                            -0x1p-149f,
                            0x1p-14f,
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::infinity()};
  for (std::uint32_t bits = 0; bits < infinity; ++bits) {
    const float here = widen(static_cast<std::uint16_t>(bits));
    const float next = widen(static_cast<std::uint16_t>(bits + 1));
    const float middle = std::isinf(next) ? here : static_cast<float>((static_cast<double>(here) + next) / 2);
    for (const float f : {here, middle}) {
      for (const float g : {std::nextafter(f, 0.0f), f, std::nextafter(f, std::numeric_limits<float>::infinity())}) {
        out.push_back(g);
        out.push_back(-g);
      }
    }
  }
  std::mt19937_64 random(16);
  for (int i = 0; i < 200'000; ++i) {
    const auto f = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(f)) out.push_back(f);
    // Most bit patterns are beyond binary16; these are not.
    out.push_back(static_cast<float>(std::ldexp(static_cast<double>(random() % (1 << 24)), -40 + int(random() % 34))));
  }
  return out;
}

std::vector<float> nans() {
  std::vector<float> out;
  for (const std::uint32_t mantissa : {1u, 0x1fffu, 0x2000u, 0x400000u, 0x7fffffu})
    for (const std::uint32_t sign : {0u, 0x80000000u})
      out.push_back(std::bit_cast<float>(sign | kF32Infinity | mantissa));
  return out;
}

TEST(F16, EveryPatternWidensToItsValue) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = f16_to_f32(static_cast<std::uint16_t>(bits));
    if (is_nan16(bits, 0x7c00)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(wide), f16_value(static_cast<std::uint16_t>(bits))) << bits;
    }
    ASSERT_EQ(std::signbit(wide), bits >> 15 != 0) << bits;
  }
}

TEST(F16, EveryPatternSurvivesThereAndBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const std::uint16_t back = f32_to_f16(f16_to_f32(static_cast<std::uint16_t>(bits)));
    if (is_nan16(bits, 0x7c00)) {
      ASSERT_TRUE(is_nan16(back, 0x7c00)) << bits;
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

TEST(F16, RoundsToNearestEven) {
  for (const float f : samples(f16_to_f32, 0x7c00)) ASSERT_EQ(f32_to_f16(f), nearest_f16(f)) << std::hexfloat << f;
}

TEST(F16, KnownValues) {
  EXPECT_EQ(f32_to_f16(1.0f), 0x3c00);
  EXPECT_EQ(f32_to_f16(-2.0f), 0xc000);
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(0x1p-24f), 0x0001);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);      // a tie, to even
  EXPECT_EQ(f32_to_f16(0x1.8p-24f), 0x0002);    // a tie, to even
  EXPECT_EQ(f32_to_f16(0x1.002p0f), 0x3c00);    // a tie, to even
  EXPECT_EQ(f32_to_f16(0x1.006p0f), 0x3c02);    // a tie, to even
  EXPECT_EQ(f32_to_f16(0x1.ff8p-15f), 0x03ff);  // the largest subnormal
  EXPECT_EQ(f32_to_f16(0x1.ffcp-15f), 0x0400);  // a tie, to the least normal
}

TEST(F16, NanStaysNan) {
  for (const float nan : nans()) {
    EXPECT_TRUE(is_nan16(f32_to_f16(nan), 0x7c00));
    EXPECT_EQ(f32_to_f16(nan) >> 15 != 0, std::signbit(nan));
  }
}

#ifdef __FLT16_MANT_DIG__
TEST(F16, AgreesWithTheCompiler) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    if (is_nan16(bits, 0x7c00)) continue;
    const auto half = std::bit_cast<_Float16>(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(f16_to_f32(static_cast<std::uint16_t>(bits))),
              std::bit_cast<std::uint32_t>(static_cast<float>(half)));
  }
  for (const float f : samples(f16_to_f32, 0x7c00))
    ASSERT_EQ(f32_to_f16(f), std::bit_cast<std::uint16_t>(static_cast<_Float16>(f))) << std::hexfloat << f;
}
#endif

TEST(Bf16, EveryPatternWidensToItsValue) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = bf16_to_f32(static_cast<std::uint16_t>(bits));
    if (is_nan16(bits, 0x7f80)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
    } else if ((bits & 0x7fff) == 0x7f80) {
      ASSERT_TRUE(std::isinf(wide)) << bits;
    } else {
      ASSERT_EQ(std::fabs(static_cast<double>(wide)), bf16_value(static_cast<std::uint16_t>(bits))) << bits;
    }
    ASSERT_EQ(std::signbit(wide), bits >> 15 != 0) << bits;
  }
}

TEST(Bf16, RoundsToNearestEven) {
  for (const float f : samples(bf16_to_f32, 0x7f80)) ASSERT_EQ(f32_to_bf16(f), nearest_bf16(f)) << std::hexfloat << f;
}

TEST(Bf16, KnownValuesAndNan) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_bf16(0x1.01p0f), 0x3f80);  // a tie, to even
  EXPECT_EQ(f32_to_bf16(0x1.03p0f), 0x3f82);  // a tie, to even
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  for (const float nan : nans()) {
    EXPECT_TRUE(is_nan16(f32_to_bf16(nan), 0x7f80));
    EXPECT_EQ(f32_to_bf16(nan) >> 15 != 0, std::signbit(nan));
  }
}

// Bytes of a block as the sum of its parts: scales, minima, high bits, quants, sums.
TEST(DType, BlocksAreAsLargeAsTheirParts) {
  struct Known {
    std::uint32_t number;
    std::string_view name;
    std::uint32_t elements;
    std::uint32_t bytes;
  };
  const Known known[] = {
      {0, "F32", 1, 4},
      {1, "F16", 1, 2},
      {2, "Q4_0", 32, 2 + 16},
      {3, "Q4_1", 32, 2 + 2 + 16},
      {6, "Q5_0", 32, 2 + 4 + 16},
      {7, "Q5_1", 32, 2 + 2 + 4 + 16},
      {8, "Q8_0", 32, 2 + 32},
      {9, "Q8_1", 32, 2 + 2 + 32},
      {10, "Q2_K", 256, 16 + 64 + 2 + 2},
      {11, "Q3_K", 256, 32 + 64 + 12 + 2},
      {12, "Q4_K", 256, 2 + 2 + 12 + 128},
      {13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128},
      {14, "Q6_K", 256, 128 + 64 + 16 + 2},
      {15, "Q8_K", 256, 4 + 256 + 32},
      {16, "IQ2_XXS", 256, 2 + 64},
      {17, "IQ2_XS", 256, 2 + 64 + 8},
      {18, "IQ3_XXS", 256, 2 + 96},
      {19, "IQ1_S", 256, 2 + 32 + 16},
      {20, "IQ4_NL", 32, 2 + 16},
      {21, "IQ3_S", 256, 2 + 64 + 8 + 32 + 4},
      {22, "IQ2_S", 256, 2 + 64 + 8 + 8},
      {23, "IQ4_XS", 256, 2 + 2 + 4 + 128},
      {24, "I8", 1, 1},
      {25, "I16", 1, 2},
      {26, "I32", 1, 4},
      {27, "I64", 1, 8},
      {28, "F64", 1, 8},
      {29, "IQ1_M", 256, 32 + 16 + 8},
      {30, "BF16", 1, 2},
      {34, "TQ1_0", 256, 2 + 4 + 48},
      {35, "TQ2_0", 256, 2 + 64},
      {39, "MXFP4", 32, 1 + 16},
  };
  std::size_t found = 0;
  for (std::uint32_t number = 0; number < 1000; ++number) found += foreign_dtype(number).has_value();
  EXPECT_EQ(found, std::size(known));
  for (const Known& k : known) {
    const auto traits = foreign_dtype(k.number);
    ASSERT_TRUE(traits.has_value()) << k.name;
    EXPECT_EQ(traits->name, k.name);
    EXPECT_EQ(traits->block_elements, k.elements) << k.name;
    EXPECT_EQ(traits->block_bytes, k.bytes) << k.name;
  }
}

TEST(DType, OnlySomeAreComputedWith) {
  std::vector<std::uint32_t> numbers;
  for (std::uint32_t number = 0; number < 1000; ++number)
    if (dtype_from_gguf(number)) numbers.push_back(number);
  EXPECT_EQ(numbers, (std::vector<std::uint32_t>{0,  1,  2,  3,  6,  7,  8,  10, 11, 12, 13, 14, 16,
                                                 17, 18, 19, 20, 21, 22, 23, 29, 30, 34, 35, 39}));
  EXPECT_EQ(dtype_traits(DType::kQ8_0).name, "Q8_0");
  EXPECT_EQ(dtype_traits(DType::kBF16).block_bytes, 2u);
}

}  // namespace
}  // namespace kvasir
