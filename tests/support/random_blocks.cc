#include "support/random_blocks.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace kvasir::test {
namespace {

// Where a block holds its 16-bit scale (-1: elsewhere), and its minimum (-1: none); the minimum over the scale that
// puts the mean at 0, and the deviation of values with a scale of 1, both for random bits.
struct Spread {
  DType type;
  int scale;
  int minimum;
  double minimum_ratio;
  double deviation;
};

constexpr Spread kSpreads[] = {
    {DType::kQ4_0, 0, -1, 0, 4.6},      {DType::kQ4_1, 0, 2, -7.5, 4.6},   {DType::kQ5_0, 0, -1, 0, 9.2},
    {DType::kQ5_1, 0, 2, -15.5, 9.2},   {DType::kQ8_0, 0, -1, 0, 73.9},    {DType::kQ2_K, 80, 82, 1.5, 13.1},
    {DType::kQ3_K, 108, -1, 0, 43.3},   {DType::kQ4_K, 0, 2, 7.5, 242},    {DType::kQ5_K, 0, 2, 15.5, 491},
    {DType::kQ6_K, 208, -1, 0, 1366},   {DType::kIQ4_NL, 0, -1, 0, 65.9},  {DType::kIQ4_XS, 0, -1, 0, 1217},
    {DType::kIQ2_XXS, 0, -1, 0, 53.4},  {DType::kIQ2_XS, 0, -1, 0, 55.9},  {DType::kIQ2_S, 0, -1, 0, 56.4},
    {DType::kIQ3_XXS, 0, -1, 0, 142.5}, {DType::kIQ3_S, 0, -1, 0, 140.2},  {DType::kIQ1_S, 0, -1, 0, 7.2},
    {DType::kIQ1_M, -1, -1, 0, 7.2},    {DType::kTQ1_0, 52, -1, 0, 0.817}, {DType::kTQ2_0, 64, -1, 0, 1.225},
    {DType::kMXFP4, -1, -1, 0, 5.85},
};

// Puts the scale's four nibbles into the highest of the block's last four 16-bit words.
void put_scale_of_iq1_m(std::byte* block, double scale) {
  const std::uint32_t bits = f32_to_f16(static_cast<float>(scale));
  for (int n = 0; n < 4; ++n) {
    std::byte& high = block[49 + 2 * n];
    high = (high & std::byte{0x0f}) | static_cast<std::byte>((bits >> (4 * n) & 15) << 4);
  }
}

// Of the two powers of two next to the scale, takes the one or the other so often that the mean square is right.
// `chance` is uniform in [0, 1).
void put_scale_of_mxfp4(std::byte* block, double scale, double chance) {
  int exponent = 0;
  const double excess = 2 * std::frexp(std::fabs(scale), &exponent);  // scale = excess * 2^(exponent - 1)
  const bool lower = chance < (4 - excess * excess) / 3;
  block[0] = static_cast<std::byte>(exponent - (lower ? 1 : 0) + 128);
}

}  // namespace

std::vector<std::byte> random_blocks(DType type, std::size_t elements, double deviation, std::mt19937_64& random) {
  const DTypeTraits& traits = dtype_traits(type);
  const Spread* spread = nullptr;
  for (const Spread& s : kSpreads)
    if (s.type == type) spread = &s;
  KVASIR_CHECK(spread != nullptr && elements % traits.block_elements == 0);
  std::vector<std::byte> bytes(elements / traits.block_elements * traits.block_bytes);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() >> 32);
  for (std::size_t block = 0; block < bytes.size(); block += traits.block_bytes) {
    const auto put = [&](int offset, double value) {
      const std::uint16_t bits = f32_to_f16(static_cast<float>(value));
      std::memcpy(bytes.data() + block + static_cast<std::size_t>(offset), &bits, sizeof bits);
    };
    const double sign = (random() >> 40) % 2 == 0 ? 1 : -1;
    const double scale = sign * deviation / spread->deviation;
    if (type == DType::kIQ1_M) put_scale_of_iq1_m(bytes.data() + block, scale);
    if (type == DType::kMXFP4)
      put_scale_of_mxfp4(bytes.data() + block, scale, static_cast<double>(random() >> 40) * 0x1p-24);
    if (spread->scale >= 0) put(spread->scale, scale);
    if (spread->minimum >= 0) put(spread->minimum, scale * spread->minimum_ratio);
  }
  return bytes;
}

}  // namespace kvasir::test
