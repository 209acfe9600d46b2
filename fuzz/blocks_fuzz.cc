// Any bytes as blocks of quantised weights: every type's reader takes them, packing loses nothing, and all tables of
// kernels give the same product. The first byte chooses the type, the second how many outputs share the bytes.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/cpu/kernels/kernels.h"
#include "base/aligned_buffer.h"
#include "base/check.h"
#include "tensor/dequantize.h"

namespace {

using namespace kvasir;

// NaNs are equal to each other: which one comes out is nobody's business.
bool same(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

// Rows of activations of no special values.
struct Rows {
  Rows(int inputs, int rows) : f32(static_cast<std::size_t>(inputs) * static_cast<std::size_t>(rows)) {
    for (std::size_t i = 0; i < f32.size(); ++i)
      f32[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) * 0.13F;
    const std::size_t groups = static_cast<std::size_t>(rows + kRowGroup - 1) / kRowGroup;
    const std::size_t group_places = static_cast<std::size_t>(inputs) / kQ8Block * kRowGroup;
    const std::size_t places = groups * group_places;
    quants.resize(places * kQ8Block);
    floats.resize(2 * places);
    sums.resize(3 * places);
    const MutableQ8Rows q8{quants.data(), floats.data(), floats.data() + places, sums.data(), sums.data() + places};
    for (int r = 0; r < rows; ++r)
      generic_kernels().quantize_q8(
          f32.data() + static_cast<std::size_t>(r) * static_cast<std::size_t>(inputs), inputs,
          q8.at(static_cast<std::size_t>(r / kRowGroup) * group_places + static_cast<std::size_t>(r % kRowGroup)));
    activations = {rows, inputs, f32.data(), {q8.quants, q8.scale, q8.scaled_sum, q8.sum, q8.half_sum}};
  }
  std::vector<float> f32;
  std::vector<std::int8_t> quants;
  std::vector<float> floats;
  std::vector<std::int32_t> sums;
  Activations activations;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  std::vector<DType> types;
  for (const DType type : all_dtypes())
    if (is_quantized(type)) types.push_back(type);
  const DType type = types[data[0] % types.size()];
  const DTypeTraits& traits = dtype_traits(type);
  const std::size_t outputs = data[1] % 20 + 1;
  const std::size_t blocks = (size - 2) / traits.block_bytes / outputs;
  if (blocks == 0 || blocks > 64) return 0;
  const std::size_t inputs = blocks * traits.block_elements;
  std::vector<std::byte> rows(outputs * blocks * traits.block_bytes);
  std::memcpy(rows.data(), data + 2, rows.size());

  PackedMatrix matrix{type, static_cast<int>(outputs), static_cast<int>(inputs), nullptr};
  AlignedBuffer<std::byte> packed;
  matrix.data = packed.ensure(kPanelPacking.bytes(type, matrix.outputs, matrix.inputs));
  kPanelPacking.pack(matrix, rows.data(), {}, 0, matrix.panels(), packed.data());
  std::vector<float> row(inputs);
  std::vector<float> block(traits.block_elements);
  for (std::size_t o = 0; o < outputs; ++o) {
    kPanelPacking.unpack_row(matrix, static_cast<int>(o), row.data());
    for (std::size_t b = 0; b < blocks; ++b) {
      dequantize_block(type, rows.data() + (o * blocks + b) * traits.block_bytes, block.data());
      for (std::size_t i = 0; i < block.size(); ++i) KVASIR_CHECK(same(row[b * block.size() + i], block[i]));
    }
  }
  // Some tables multiply many rows otherwise than one.
  for (const int count : {1, 19}) {
    const Rows x(matrix.inputs, count);
    std::vector<float> want(outputs * static_cast<std::size_t>(count));
    generic_kernels().matmul(matrix, x.activations, 0, matrix.panels(), want.data(), outputs);
    for (const KernelTable* table : {avx2_kernels(), avx512_kernels(), amx_kernels()}) {
      if (table == nullptr) continue;
      std::vector<float> got(want.size());
      table->matmul(matrix, x.activations, 0, matrix.panels(), got.data(), outputs);
      for (std::size_t i = 0; i < want.size(); ++i) KVASIR_CHECK(same(got[i], want[i]));
    }
  }
  return 0;
}
