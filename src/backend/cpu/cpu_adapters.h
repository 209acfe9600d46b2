// LoRA adapters, packed for the kernel tables, and what they add to products. Internal to src/backend/cpu.
//
// Matrices stay in F32 or F16 as in the file; other types become F32. Of a row, A x, its multiplication by the scale,
// B times that, and its addition to the product each run in one order, whatever other rows and adapters there are.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels/kernels.h"
#include "base/aligned_buffer.h"
#include "base/thread_pool.h"

namespace kvasir {

class CpuAdapters {
 public:
  CpuAdapters(const KernelTable* kernels, ThreadPool* threads) : kernels_(*kernels), threads_(*threads) {}
  CpuAdapters(const CpuAdapters&) = delete;
  CpuAdapters& operator=(const CpuAdapters&) = delete;

  // See Backend::adapter_bytes and load_adapter.
  static std::uint64_t bytes_of(const WeightPacking& packing, std::span<const LowRankPart> parts);
  void load(std::span<const LowRankPart> parts);

  // Consecutive rows that run with the same adapters.
  struct Rows {
    int first = 0;
    int count = 0;
    std::span<const AppliedAdapter> adapters;  // not empty
  };
  // The rows of a batch that run with any; those of sequences side by side with the same adapters together.
  const std::vector<Rows>& rows_of(const Batch& batch);

  // A product with a matrix, to which adapters add.
  struct Product {
    WeightId matrix = kNoWeight;
    int outputs = 0;
    float* out = nullptr;  // [rows][outputs]
  };
  // x: [rows][inputs]. At most kMostProducts.
  void add(const float* x, int inputs, std::span<const Product> products, std::span<const Rows> rows);
  static constexpr int kMostProducts = 5;

  // Bytes that passes of up to `rows` rows take.
  static std::uint64_t workspace_bytes(int ranks, int rows);
  std::uint64_t allocated_bytes() const { return low_.bytes(); }
  std::uint64_t loaded_bytes() const;

 private:
  struct Pair {
    PackedMatrix a, b;
    float factor = 1;
  };
  struct Adapter {
    AlignedBuffer<std::byte> data;
    std::unordered_map<std::uint32_t, Pair> pairs;  // by WeightId
  };
  // What one adapter adds to one product for some rows.
  struct Term {
    const Pair* pair = nullptr;
    float factor = 1;  // with the scale
    const float* x = nullptr;
    float* low = nullptr;  // [rows][rank]: factor * A x
    int rows = 0;
  };
  // The terms of one product for some rows.
  struct Sum {
    std::size_t first = 0;
    std::size_t end = 0;
    float* out = nullptr;
    int rows = 0;
    int outputs = 0;
  };
  void collect(const float* x, int inputs, std::span<const Product> products, std::span<const Rows> rows);
  void multiply_down(const Term& term, int inputs, int panel, int first_row) const;
  void add_up(const Sum& sum, int tile, int first_row) const;

  const KernelTable& kernels_;
  ThreadPool& threads_;
  std::vector<std::unique_ptr<Adapter>> adapters_;
  std::vector<Rows> rows_;
  std::vector<Term> terms_;
  std::vector<Sum> sums_;
  AlignedBuffer<float> low_;
};

}  // namespace kvasir
