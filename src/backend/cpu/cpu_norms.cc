#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend_impl.h"
#include "base/check.h"

namespace kvasir {

// Some outputs at a time: their weights become floats, packed for the products with each head, and are multiplied with
// all vectors.
void CpuBackend::product_norms(WeightId id, const HeadColumns& columns, std::span<const float> vectors,
                               std::span<double> norms) {
  constexpr int kRows = 32;  // vectors of a task
  const PackedMatrix& matrix = weights_.matrix(id);
  const int count = columns.count;
  KVASIR_CHECK(columns.first >= 0 && columns.first + columns.heads * count <= matrix.inputs);
  KVASIR_CHECK(vectors.size() == norms.size() * static_cast<std::size_t>(count));
  const std::size_t of_head = product(kNormOutputs, count);
  AlignedBuffer<float> unpacked, packed;
  float* const rows = unpacked.ensure(product(kNormOutputs, matrix.inputs));
  float* const panels = packed.ensure(static_cast<std::size_t>(columns.heads) * of_head);
  const int vectors_left = static_cast<int>(norms.size());
  std::ranges::fill(norms, 0.0);
  for (int first = 0; first < matrix.outputs; first += kNormOutputs) {
    const PackedMatrix shape{DType::kF32, std::min(kNormOutputs, matrix.outputs - first), count};
    threads_.parallel_for(shape.panels() * kPanel, [&](int output) {
      float* const row = rows + product(output, matrix.inputs);
      if (output < shape.outputs) {
        kernels_.packing->unpack_row(matrix, first + output, row);
      } else {
        std::fill_n(row, matrix.inputs, 0.0F);  // outputs beyond the last are zero
      }
      for (int head = 0; head < columns.heads; ++head)
        for (int i = 0; i < count; ++i)
          panels[static_cast<std::size_t>(head) * of_head + product(output / kPanel * count + i, kPanel) +
                 static_cast<std::size_t>(output % kPanel)] = row[columns.first + head * count + i];
    });
    threads_.parallel_for((vectors_left + kRows - 1) / kRows, [&](int task) {
      const int begin = task * kRows, size = std::min(kRows, vectors_left - begin);
      const Activations x{size, count, vectors.data() + product(begin, count), {}};
      alignas(64) float out[kRows * kNormOutputs];
      for (int head = 0; head < columns.heads; ++head) {
        PackedMatrix weights = shape;
        weights.data = reinterpret_cast<const std::byte*>(panels + static_cast<std::size_t>(head) * of_head);
        kernels_.matmul(weights, x, 0, shape.panels(), out, kNormOutputs);
        for (int row = 0; row < size; ++row) {
          double sum = 0;
          for (int output = 0; output < shape.outputs; ++output)
            sum += std::abs(double{out[row * kNormOutputs + output]});
          norms[static_cast<std::size_t>(begin + row)] += sum / columns.heads;
        }
      }
    });
  }
}

}  // namespace kvasir
