#include <algorithm>
#include <cstring>

#include "backend/cpu/kernels/fenced.h"
#include "backend/cpu/kernels/kernel_test.h"
#include "support/random_blocks.h"
#include "tensor/dequantize.h"

namespace kvasir::test {
namespace {

// A matrix as a file holds it; floats of every kind but NaN, which would not compare.
std::vector<std::byte> random_rows(DType type, int outputs, int inputs, Random& random) {
  const auto count = static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs);
  std::mt19937_64 bits(random.bits());
  if (is_quantized(type)) return random_blocks(type, count, 100.0, bits);
  std::vector<std::byte> rows;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = random.symmetric(100.0F);
    const std::uint16_t half = type == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
    const std::size_t size = type == DType::kF32 ? 4 : 2;
    const auto* bytes = reinterpret_cast<const std::byte*>(&half);
    if (type == DType::kF32) bytes = reinterpret_cast<const std::byte*>(&value);
    rows.insert(rows.end(), bytes, bytes + size);
  }
  return rows;
}

// The values of a row of the file.
std::vector<float> file_row(DType type, const std::vector<std::byte>& rows, int inputs, int row) {
  const DTypeTraits& traits = dtype_traits(type);
  const std::size_t blocks = static_cast<std::size_t>(inputs) / traits.block_elements;
  const std::byte* at = rows.data() + static_cast<std::size_t>(row) * blocks * traits.block_bytes;
  std::vector<float> out(static_cast<std::size_t>(inputs));
  for (std::size_t b = 0; b < blocks; ++b, at += traits.block_bytes) {
    if (is_quantized(type)) {
      dequantize_block(type, at, out.data() + b * traits.block_elements);
    } else if (type == DType::kF32) {
      std::memcpy(&out[b], at, 4);
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, at, 2);
      out[b] = type == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
  }
  return out;
}

TEST(Pack, UnpackedRowsAreTheFilesRows) {
  Random random(1);
  for (const DType type : all_dtypes()) {
    const int block = static_cast<int>(std::max(32u, dtype_traits(type).block_elements));
    for (const int inputs : {block, 5 * block}) {
      for (const int outputs : {1, 15, 16, 17, 50}) {
        const std::vector<std::byte> bytes = random_rows(type, outputs, inputs, random);
        const Fenced<std::byte> rows(bytes);
        Fenced<std::byte> packed(kPanelPacking.bytes(type, outputs, inputs), std::size_t{64});
        const PackedMatrix matrix{type, outputs, inputs, packed.data()};
        // In two parts and out of order: panels are independent.
        const int middle = matrix.panels() / 2;
        kPanelPacking.pack(matrix, rows.data(), {}, middle, matrix.panels(), packed.data());
        kPanelPacking.pack(matrix, rows.data(), {}, 0, middle, packed.data());
        ASSERT_TRUE(packed.intact());
        for (int o = 0; o < outputs; ++o) {
          Fenced<float> out(static_cast<std::size_t>(inputs));
          kPanelPacking.unpack_row(matrix, o, out.data());
          ASSERT_TRUE(out.intact());
          ASSERT_EQ(out.copy(), file_row(type, bytes, inputs, o)) << dtype_traits(type).name << " " << o;
        }
      }
    }
  }
}

// Files of packed weights outlive the program: other bytes need another name.
TEST(Pack, BytesAreThoseOfTheName) {
  EXPECT_EQ(kPanelPacking.name, "panels-16.2");
  Random random(6);
  // Blocks of one half field: words of two, scales of two; the third alone. Of Q8_0: a scale of 2 bytes, 32 of weights.
  constexpr int kBlocks = 3;
  const std::vector<std::byte> rows = random_rows(DType::kQ8_0, 16, kBlocks * 32, random);
  Fenced<std::byte> packed(kPanelPacking.bytes(DType::kQ8_0, 16, kBlocks * 32), std::size_t{64});
  kPanelPacking.pack({DType::kQ8_0, 16, kBlocks * 32, packed.data()}, rows.data(), {}, 0, 1, packed.data());
  constexpr int kWords[kBlocks] = {0, 512, 1088};
  constexpr int kScales[kBlocks] = {1024, 1056, 1600};
  for (int output = 0; output < 16; ++output)
    for (int b = 0; b < kBlocks; ++b) {
      const std::byte* block = rows.data() + (output * kBlocks + b) * 34;
      EXPECT_EQ(std::memcmp(packed.data() + kScales[b] + output * 2, block, 2), 0);
      for (int word = 0; word < 8; ++word)
        EXPECT_EQ(std::memcmp(packed.data() + kWords[b] + (word * 16 + output) * 4, block + 2 + word * 4, 4), 0);
    }
  // Of two half fields: each block alone. Of Q4_1: a scale, a minimum, 16 bytes of nibbles.
  const std::vector<std::byte> others = random_rows(DType::kQ4_1, 16, 2 * 32, random);
  Fenced<std::byte> alone(kPanelPacking.bytes(DType::kQ4_1, 16, 2 * 32), std::size_t{64});
  kPanelPacking.pack({DType::kQ4_1, 16, 2 * 32, alone.data()}, others.data(), {}, 0, 1, alone.data());
  for (int output = 0; output < 16; ++output)
    for (int b = 0; b < 2; ++b) {
      const std::byte* block = others.data() + (output * 2 + b) * 20;
      const std::byte* panel = alone.data() + b * 320;
      EXPECT_EQ(std::memcmp(panel + 256 + output * 2, block, 2), 0);
      EXPECT_EQ(std::memcmp(panel + 288 + output * 2, block + 2, 2), 0);
      for (int word = 0; word < 4; ++word)
        EXPECT_EQ(std::memcmp(panel + (word * 16 + output) * 4, block + 4 + word * 4, 4), 0);
    }
}

// A scale of eight bits: words of four, scales of four; what is left of a panel together.
TEST(Pack, BytesOfBlocksWithScalesOfEightBits) {
  Random random(7);
  constexpr int kBlocks = 6;
  const std::vector<std::byte> rows = random_rows(DType::kMXFP4, 16, kBlocks * 32, random);
  Fenced<std::byte> packed(kPanelPacking.bytes(DType::kMXFP4, 16, kBlocks * 32), std::size_t{64});
  kPanelPacking.pack({DType::kMXFP4, 16, kBlocks * 32, packed.data()}, rows.data(), {}, 0, 1, packed.data());
  constexpr int kWords[kBlocks] = {0, 256, 512, 768, 1088, 1344};
  constexpr int kScales[kBlocks] = {1024, 1040, 1056, 1072, 1600, 1616};
  for (int output = 0; output < 16; ++output)
    for (int b = 0; b < kBlocks; ++b) {
      const std::byte* block = rows.data() + (output * kBlocks + b) * 17;
      EXPECT_EQ(packed.data()[kScales[b] + output], block[0]);
      for (int word = 0; word < 4; ++word)
        EXPECT_EQ(std::memcmp(packed.data() + kWords[b] + (word * 16 + output) * 4, block + 1 + word * 4, 4), 0);
    }
}

// Signs are grouped: that of input 4g + k is bit g of byte k. Of four times seven, scales take the place of the eighth.
TEST(Pack, BitsOfSigns) {
  struct Case {
    DType type;
    int word;  // of the block
    int offset;
    int file_bit;
    std::uint32_t packed;
  };
  for (const Case& c :
       {Case{DType::kIQ3_S, 18, 74, 0, 1}, Case{DType::kIQ3_S, 25, 74 + 28, 13, 1U << (8 + 3)},
        Case{DType::kIQ2_S, 8, 34, 31, 1U << 31}, Case{DType::kIQ2_XXS, 1, 6, 6, 1U << (16 + 1)},
        Case{DType::kIQ2_XXS, 15, 2 + 60, 7, 1U << 2}, Case{DType::kIQ3_XXS, 16, 66, 28, 1U << (24 + 1)},
        Case{DType::kIQ3_XXS, 23, 66 + 28, 31, 1U << (24 + 7)}}) {
    std::vector<std::byte> row(dtype_traits(c.type).block_bytes);
    const std::uint32_t bits = 1U << c.file_bit;
    std::memcpy(row.data() + c.offset, &bits, sizeof bits);
    Fenced<std::byte> packed(kPanelPacking.bytes(c.type, 1, 256), std::size_t{64});
    kPanelPacking.pack({c.type, 1, 256, packed.data()}, row.data(), {}, 0, 1, packed.data());
    std::uint32_t word = 0;
    std::memcpy(&word, packed.data() + c.word * 64, sizeof word);
    EXPECT_EQ(word, c.packed) << dtype_traits(c.type).name << " " << c.file_bit;
  }
}

// Heads whose rotated pairs are i and i + rotary / 2, of which a matrix takes only some rows.
TEST(Pack, RowOrderMakesPairsAdjacent) {
  Random random(4);
  for (const DType type : all_dtypes()) {
    const int inputs = static_cast<int>(dtype_traits(type).block_elements);
    const std::vector<std::byte> bytes = random_rows(type, 3 + 2 * 10, inputs, random);
    Fenced<std::byte> packed(kPanelPacking.bytes(type, 20, inputs), std::size_t{64});
    const PackedMatrix matrix{type, 20, inputs, packed.data()};
    kPanelPacking.pack(matrix, bytes.data(), {3, 10, 6}, 0, matrix.panels(), packed.data());
    const int order[10] = {0, 3, 1, 4, 2, 5, 6, 7, 8, 9};
    for (int o = 0; o < 20; ++o) {
      std::vector<float> out(static_cast<std::size_t>(inputs));
      kPanelPacking.unpack_row(matrix, o, out.data());
      ASSERT_EQ(out, file_row(type, bytes, inputs, 3 + o / 10 * 10 + order[o % 10])) << dtype_traits(type).name;
    }
  }
}

TEST(Pack, OddInputsOfFloatTypes) {
  Random random(2);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int inputs : {1, 63, 65, 131}) {
      const std::vector<std::byte> rows = random_rows(type, 18, inputs, random);
      Fenced<std::byte> packed(kPanelPacking.bytes(type, 18, inputs), std::size_t{64});
      const PackedMatrix matrix{type, 18, inputs, packed.data()};
      kPanelPacking.pack(matrix, rows.data(), {}, 0, 2, packed.data());
      ASSERT_TRUE(packed.intact());
      std::vector<float> out(static_cast<std::size_t>(inputs));
      kPanelPacking.unpack_row(matrix, 17, out.data());
      ASSERT_EQ(out, file_row(type, rows, inputs, 17));
    }
  }
}

TEST(Pack, PaddingIsZero) {
  Random random(3);
  for (const DType type : all_dtypes()) {
    const std::vector<std::byte> rows = random_rows(type, 3, 256, random);
    Fenced<std::byte> packed(kPanelPacking.bytes(type, 3, 256), std::size_t{64});
    kPanelPacking.pack({type, 3, 256, nullptr}, rows.data(), {}, 0, 1, packed.data());
    const PackedMatrix padded{type, kPanel, 256, packed.data()};
    for (int o = 3; o < kPanel; ++o) {
      std::vector<float> out(256, 1.0F);
      kPanelPacking.unpack_row(padded, o, out.data());
      for (const float x : out) ASSERT_EQ(x, 0.0F) << dtype_traits(type).name;
    }
  }
}

TEST(Pack, TakesTheFilesBytesAndPaddingOnly) {
  EXPECT_EQ(kPanelPacking.bytes(DType::kF32, 32, 10), 32u * 10 * 4);
  EXPECT_EQ(kPanelPacking.bytes(DType::kF16, 33, 10), 48u * 10 * 2);
  EXPECT_EQ(kPanelPacking.bytes(DType::kBF16, 16, 3), 16u * 3 * 2);
  EXPECT_EQ(kPanelPacking.bytes(DType::kQ8_0, 17, 64), 32u * 2 * 34);
  for (const DType type : all_dtypes())
    EXPECT_EQ(kPanelPacking.bytes(type, 16, 512),
              16u * 512 / dtype_traits(type).block_elements * dtype_traits(type).block_bytes);
}

TEST(PackDeathTest, Q8NeedsWholeBlocks) {
  std::vector<std::byte> rows(1000);
  std::vector<std::byte> out(10000);
  EXPECT_DEATH(kPanelPacking.pack({DType::kQ8_0, 16, 33, nullptr}, rows.data(), {}, 0, 1, out.data()),
               "internal error");
}

}  // namespace
}  // namespace kvasir::test
