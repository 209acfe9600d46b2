#include "tensor/dequantize.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "reference/dequantise.h"
#include "support/random_blocks.h"

namespace kvasir::test {
namespace {

std::vector<float> values_of(DType type, const std::vector<std::byte>& bytes) {
  const DTypeTraits& traits = dtype_traits(type);
  std::vector<float> out(bytes.size() / traits.block_bytes * traits.block_elements);
  for (std::size_t b = 0; b < bytes.size() / traits.block_bytes; ++b)
    dequantize_block(type, bytes.data() + b * traits.block_bytes, out.data() + b * traits.block_elements);
  return out;
}

// What ggml's own Python implementation (gguf.quants.dequantize) makes of a block with bytes
// (73 i + 41 + floor(i^2 / 7)) mod 256, its scale 0.5, and its minimum, where it has one, 0.25.
struct Published {
  DType type;
  std::vector<int> scales;  // where they are
  double values[5];         // at 0, 1, 15, 16, 31
  double sum;
  double weighted_sum;  // value i times i mod 17
};

const Published kPublished[] = {
    {DType::kQ4_0, {0}, {1.5, -1.5, 1.5, 1.5, -3.0}, -4.0, -12.5},
    {DType::kQ4_1, {0, 2}, {7.75, 4.75, 3.75, 2.25, 6.25}, 136.0, 979.25},
    {DType::kQ5_0, {0}, {2.0, 7.5, -5.5, 7.0, 3.0}, -1.5, -185.5},
    {DType::kQ5_1, {0, 2}, {13.25, 10.75, 9.75, 3.75, 0.25}, 262.0, 1790.75},
    {DType::kQ8_0, {0}, {-34.5, 2.5, 21.5, 60.5, 22.5}, -30.0, 74.5},
    {DType::kQ2_K, {80, 82}, {4.0, 13.0, 4.0, 1.25, 1.25}, 1017.5, 7910.75},
    {DType::kQ3_K, {108}, {19.5, -19.5, -6.5, -14.0, -21.0}, -150.0, -3409.0},
    {DType::kQ4_K, {0, 2}, {83.0, 68.0, 53.0, 68.0, 68.0}, 26421.5, 208940.25},
    {DType::kQ5_K, {0, 2}, {120.5, 173.0, 158.0, 120.5, 188.0}, 58130.5, 471226.25},
    {DType::kQ6_K, {208}, {-430.5, 1107.0, -984.0, -72.5, -62.5}, -3428.5, 1703.0},
    {DType::kIQ4_NL, {0}, {19.0, -17.5, 19.0, 19.0, -41.5}, -36.5, -113.5},
    {DType::kIQ4_XS, {0}, {387.5, -542.5, -1007.5, -155.0, -1968.5}, -8472.0, -52324.0},
};

TEST(Dequantize, IsWhatThePublishedImplementationSays) {
  for (const Published& published : kPublished) {
    const DTypeTraits& traits = dtype_traits(published.type);
    std::vector<std::byte> block(traits.block_bytes);
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(73 * i + 41 + i * i / 7);
    for (std::size_t s = 0; s < published.scales.size(); ++s) {
      const auto at = static_cast<std::size_t>(published.scales[s]);
      block[at] = std::byte{0};
      block[at + 1] = s == 0 ? std::byte{0x38} : std::byte{0x34};
    }
    const std::vector<float> values = values_of(published.type, block);
    const std::size_t indices[5] = {0, 1, 15, 16, 31};
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(values[indices[i]], published.values[i]) << traits.name;
    double sum = 0;
    double weighted = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      sum += static_cast<double>(values[i]);
      weighted += static_cast<double>(values[i]) * static_cast<double>(i % 17);
    }
    EXPECT_EQ(sum, published.sum) << traits.name;
    EXPECT_EQ(weighted, published.weighted_sum) << traits.name;
  }
}

// A line of dequantised.txt, which dequantised.py describes.
struct OfGguf {
  std::string name;
  std::uint32_t number = 0;
  std::string scales;
  std::string block;
  std::string values;
  std::string sum;
};

std::vector<OfGguf> read_gguf_values() {
  const char* source = std::getenv("KVASIR_SOURCE_DIR");
  std::ifstream file(std::string(source != nullptr ? source : ".") + "/tests/tensor/dequantised.txt");
  std::string comment;
  std::getline(file, comment);
  std::vector<OfGguf> all;
  for (OfGguf of; file >> of.name >> of.number >> of.scales >> of.block >> of.values >> of.sum;) all.push_back(of);
  return all;
}

// The random blocks of dequantised.py.
std::vector<std::byte> blocks_of_gguf(const OfGguf& of, std::size_t bytes, std::size_t block_bytes) {
  std::vector<std::byte> out(bytes);
  std::uint64_t state = of.number;
  for (std::byte& b : out) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    b = static_cast<std::byte>(state >> 56);
  }
  std::istringstream scales(of.scales == "-" ? "" : of.scales);
  for (std::string offset; std::getline(scales, offset, ',');)
    for (std::size_t at = std::stoul(offset); at < bytes; at += block_bytes) out[at] &= std::byte{0xbf};
  return out;
}

std::string hexadecimal(std::uint64_t number, int digits) {
  std::string text(static_cast<std::size_t>(digits), '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, number /= 16)
    *digit = "0123456789abcdef"[number % 16];
  return text;
}

// 1,024 blocks name every entry of every grid.
TEST(Dequantize, IsWhatGgufSaysBitForBit) {
  constexpr std::size_t kBlocks = 1024;
  std::set<DType> types;
  for (const OfGguf& of : read_gguf_values()) {
    const auto type = static_cast<DType>(of.number);
    types.insert(type);
    const DTypeTraits& traits = dtype_traits(type);
    EXPECT_EQ(traits.name, of.name);
    const std::vector<std::byte> bytes = blocks_of_gguf(of, kBlocks * traits.block_bytes, traits.block_bytes);
    std::string block;
    for (std::size_t i = 0; i < traits.block_bytes; ++i)
      block += hexadecimal(std::to_integer<std::uint64_t>(bytes[i]), 2);
    ASSERT_EQ(block, of.block) << of.name;
    const std::vector<float> values = values_of(type, bytes);
    for (std::size_t i = 0; i < traits.block_elements; ++i)
      EXPECT_EQ(hexadecimal(std::bit_cast<std::uint32_t>(values[i]), 8), of.values.substr(8 * i, 8))
          << of.name << " " << i << ": " << values[i];
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) sum += std::bit_cast<std::uint32_t>(values[i]) * (2 * i + 1);
    EXPECT_EQ(hexadecimal(sum, 16), of.sum) << of.name;
  }
  for (const DType type : all_dtypes())
    EXPECT_EQ(types.count(type) != 0, is_quantized(type)) << dtype_traits(type).name;
}

TEST(Dequantize, ScalesOfMxfp4) {
  std::vector<std::byte> block(17, std::byte{0x21});  // codes 1 and 2: 0.5 and 1
  for (int e = 0; e < 256; ++e) {
    block[0] = static_cast<std::byte>(e);
    const std::vector<float> values = values_of(DType::kMXFP4, block);
    EXPECT_EQ(values[0], std::ldexp(1.0F, e - 128)) << e;
    EXPECT_EQ(values[31], std::ldexp(1.0F, e - 127)) << e;
  }
}

TEST(Dequantize, AgreesWithTheDefinitionsOnRandomBlocks) {
  std::mt19937_64 random(1);
  for (const DType type : all_dtypes()) {
    if (!is_quantized(type)) continue;
    const std::size_t elements = 256 * 40;
    const std::vector<std::byte> bytes = random_blocks(type, elements, 1.0, random);
    const std::vector<float> got = values_of(type, bytes);
    const std::vector<double> want = dequantise(static_cast<std::uint32_t>(type), bytes, elements);
    double squares = 0;
    double sum = 0;
    for (std::size_t i = 0; i < elements; ++i) {
      // Two roundings of products, one of a difference of numbers that may be ten times as large.
      ASSERT_NEAR(static_cast<double>(got[i]), want[i], 1e-6 * (std::fabs(want[i]) + 4)) << dtype_traits(type).name;
      sum += want[i];
      squares += want[i] * want[i];
    }
    const auto count = static_cast<double>(elements);
    EXPECT_NEAR(std::sqrt(squares / count), 1, 0.1) << dtype_traits(type).name;
    EXPECT_NEAR(sum / count, 0, 0.1) << dtype_traits(type).name;
  }
}

}  // namespace
}  // namespace kvasir::test
