// Products with a matrix for each head (latent attention).
#include <algorithm>

#include "backend/cpu/cpu_backend_impl.h"
#include "base/check.h"

namespace kvasir {

void CpuBackend::multiply_heads(Activation from, const HeadProduct& heads, Activation to) {
  const auto matrix = [&](int head) -> const PackedMatrix& {
    return weights_.matrix(
        static_cast<WeightId>(static_cast<std::uint32_t>(heads.first) + static_cast<std::uint32_t>(head)));
  };
  const int inputs = matrix(0).inputs, outputs = matrix(0).outputs;
  const int part = heads.skipped + inputs;
  KVASIR_CHECK(tensor(from).width == heads.heads * part);
  const float* x = tensor(from).data.data();
  float* out = ensure(to, heads.heads * outputs);
  float* own = of_heads_.ensure(product(heads.heads, rows_) * static_cast<std::size_t>(inputs));
  const bool quantized = is_quantized(matrix(0).type);
  const int groups = (rows_ + kRowGroup - 1) / kRowGroup;  // of quantised rows of a head
  const MutableQ8Rows all = quantized ? quantized_.ensure(heads.heads * groups, inputs) : MutableQ8Rows{};
  threads_.parallel_for(heads.heads, [&](int head) {
    for (int row = 0; row < rows_; ++row) {
      float* of_row = own + (product(head, rows_) + static_cast<std::size_t>(row)) * static_cast<std::size_t>(inputs);
      std::copy_n(x + product(row, heads.heads * part) + product(head, part) + heads.skipped, inputs, of_row);
      if (quantized)
        kernels_.quantize_q8(
            of_row, inputs,
            all.at(group_places(head * groups + row / kRowGroup, inputs) + static_cast<std::size_t>(row % kRowGroup)));
    }
  });
  const int panels = matrix(0).panels();
  const int share = rows_ <= kRowGroup ? panels : std::min(panels, 8);
  const int shares = (panels + share - 1) / share;
  threads_.parallel_for(heads.heads * shares, [&](int task) {
    const int head = task / shares, begin = task % shares * share;
    const Activations activations{rows_, inputs, own + product(head, rows_) * static_cast<std::size_t>(inputs),
                                  quantized_.view(head * groups, inputs)};
    kernels_.matmul(matrix(head), activations, begin, std::min(panels, begin + share), out + product(head, outputs),
                    product(heads.heads, outputs));
  });
}

void CpuBackend::join_heads(Activation a, Activation b, int heads, Activation to) {
  const int of_a = tensor(a).width / heads, of_b = tensor(b).width / heads;
  const float* first = tensor(a).data.data();
  const float* second = tensor(b).data.data();
  float* out = ensure(to, heads * (of_a + of_b));
  threads_.parallel_for(rows_, [&](int row) {
    for (int head = 0; head < heads; ++head) {
      float* at = out + product(row, heads * (of_a + of_b)) + product(head, of_a + of_b);
      std::copy_n(first + product(row, heads * of_a) + product(head, of_a), of_a, at);
      std::copy_n(second + product(row, heads * of_b) + product(head, of_b), of_b, at + of_a);
    }
  });
}

}  // namespace kvasir
