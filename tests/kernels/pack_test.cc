#include <cmath>
#include <cstring>

#include "kernels/fenced.h"
#include "kernels/kernel_test.h"

namespace kvasir::test {
namespace {

// Random bits of a matrix as a file holds it; floats of every kind but NaN, which would not compare.
std::vector<std::byte> random_rows(DType type, int outputs, int inputs, Random& random) {
  const DTypeTraits& traits = dtype_traits(type);
  const auto blocks = static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs) / traits.block_elements;
  std::vector<std::byte> rows(blocks * traits.block_bytes);
  for (std::byte& b : rows) b = static_cast<std::byte>(random.bits());
  for (std::size_t b = 0; b < blocks; ++b) {
    std::byte* block = rows.data() + b * traits.block_bytes;
    const float value = random.symmetric(100.0F);
    const std::uint16_t half = type == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
    if (type == DType::kF32) {
      std::memcpy(block, &value, 4);
    } else {
      std::memcpy(block, &half, 2);
    }
  }
  return rows;
}

float element(DType type, const std::vector<std::byte>& rows, std::size_t index) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, rows.data() + index * 4, 4);
    return value;
  }
  std::uint16_t bits;
  if (type == DType::kQ8_0) {
    const std::byte* block = rows.data() + index / kQ8Block * 34;
    std::memcpy(&bits, block, 2);
    return f16_to_f32(bits) * static_cast<float>(static_cast<std::int8_t>(block[2 + index % kQ8Block]));
  }
  std::memcpy(&bits, rows.data() + index * 2, 2);
  return type == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

TEST(Pack, UnpackedRowsAreTheFilesRows) {
  Random random(1);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    for (const int inputs : {32, 160}) {
      for (const int outputs : {1, 15, 16, 17, 50}) {
        const Fenced<std::byte> rows(random_rows(type, outputs, inputs, random));
        Fenced<std::byte> packed(packed_bytes(type, outputs, inputs), std::size_t{64});
        const PackedMatrix matrix{type, outputs, inputs, packed.data()};
        // In two parts and out of order: panels are independent.
        const int middle = matrix.panels() / 2;
        pack_panels(type, outputs, inputs, rows.data(), middle, matrix.panels(), packed.data());
        pack_panels(type, outputs, inputs, rows.data(), 0, middle, packed.data());
        ASSERT_TRUE(packed.intact());
        for (int o = 0; o < outputs; ++o) {
          Fenced<float> out(static_cast<std::size_t>(inputs));
          unpack_row(matrix, o, out.data());
          ASSERT_TRUE(out.intact());
          for (int i = 0; i < inputs; ++i) {
            const auto at =
                static_cast<std::size_t>(o) * static_cast<std::size_t>(inputs) + static_cast<std::size_t>(i);
            ASSERT_EQ(out[static_cast<std::size_t>(i)], element(type, rows.copy(), at))
                << dtype_traits(type).name << " " << o << " " << i;
          }
        }
      }
    }
  }
}

TEST(Pack, OddInputsOfFloatTypes) {
  Random random(2);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int inputs : {1, 63, 65, 131}) {
      const std::vector<std::byte> rows = random_rows(type, 18, inputs, random);
      Fenced<std::byte> packed(packed_bytes(type, 18, inputs), std::size_t{64});
      pack_panels(type, 18, inputs, rows.data(), 0, 2, packed.data());
      ASSERT_TRUE(packed.intact());
      std::vector<float> out(static_cast<std::size_t>(inputs));
      unpack_row({type, 18, inputs, packed.data()}, 17, out.data());
      for (std::size_t i = 0; i < out.size(); ++i)
        ASSERT_EQ(out[i], element(type, rows, 17 * static_cast<std::size_t>(inputs) + i));
    }
  }
}

TEST(Pack, PaddingIsZero) {
  Random random(3);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    const std::vector<std::byte> rows = random_rows(type, 3, 64, random);
    Fenced<std::byte> packed(packed_bytes(type, 3, 64), std::size_t{64});
    pack_panels(type, 3, 64, rows.data(), 0, 1, packed.data());
    const PackedMatrix padded{type, kPanel, 64, packed.data()};
    for (int o = 3; o < kPanel; ++o) {
      std::vector<float> out(64, 1.0F);
      unpack_row(padded, o, out.data());
      for (const float x : out) ASSERT_TRUE(x == 0 && !std::signbit(x));
    }
  }
}

TEST(Pack, TakesTheFilesBytesAndPaddingOnly) {
  EXPECT_EQ(packed_bytes(DType::kF32, 32, 10), 32u * 10 * 4);
  EXPECT_EQ(packed_bytes(DType::kF16, 33, 10), 48u * 10 * 2);
  EXPECT_EQ(packed_bytes(DType::kBF16, 16, 3), 16u * 3 * 2);
  EXPECT_EQ(packed_bytes(DType::kQ8_0, 17, 64), 32u * 2 * 34);
}

TEST(PackDeathTest, Q8NeedsWholeBlocks) {
  std::vector<std::byte> rows(1000);
  std::vector<std::byte> out(10000);
  EXPECT_DEATH(pack_panels(DType::kQ8_0, 16, 33, rows.data(), 0, 1, out.data()), "internal error");
}

}  // namespace
}  // namespace kvasir::test
