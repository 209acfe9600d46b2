// The weights of a model, packed for the kernel tables into one range of memory.
// Thread-safety: immutable after load.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels/kernels.h"
#include "base/thread_pool.h"

namespace kvasir {

class CpuWeights {
 public:
  CpuWeights() = default;
  CpuWeights(const CpuWeights&) = delete;
  CpuWeights& operator=(const CpuWeights&) = delete;
  ~CpuWeights();

  static std::uint64_t bytes_of(const WeightPacking& packing, std::span<const WeightPart> parts);
  Status load(const WeightPacking& packing, std::span<const WeightPart> parts, ThreadPool& threads,
              const Backend::LoadOptions& options);
  // Locks the weights in memory, so that they are never paged out. Errors: kResourceExhausted.
  Status lock() const;

  const PackedMatrix& matrix(WeightId id) const { return weights_[static_cast<std::size_t>(id)].matrix; }
  // Null for kNoWeight.
  const float* vector(WeightId id) const {
    return id == kNoWeight ? nullptr : weights_[static_cast<std::size_t>(id)].vector;
  }

 private:
  struct Weight {
    PackedMatrix matrix;
    const float* vector = nullptr;
  };
  std::vector<Weight> weights_;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  bool own_ = false;
};

}  // namespace kvasir
