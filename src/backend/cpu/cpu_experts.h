// The feed-forward networks of a mixture of experts. Internal to src/backend/cpu.
//
// The rows of a pass are regrouped by the experts that they chose, so that the weights of each expert are read once.
// Experts are taken in waves of at most wave_rows rows, which bounds the memory.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_weights.h"
#include "backend/cpu/quantized_rows.h"
#include "base/thread_pool.h"

namespace kvasir {

class CpuExperts {
 public:
  CpuExperts(const KernelTable* kernels, ThreadPool* threads, const CpuWeights* weights)
      : kernels_(*kernels), threads_(*threads), weights_(*weights) {}
  CpuExperts(const CpuExperts&) = delete;
  CpuExperts& operator=(const CpuExperts&) = delete;

  struct Rows {
    int count = 0;
    int width = 0;
    const float* x = nullptr;       // [count][width]
    const float* router = nullptr;  // [count][experts]
    float* out = nullptr;           // [count][width]
  };
  // See Backend::run_experts.
  void run(const Backend::Experts& experts, const Rows& rows);

  // Bytes that passes of up to `rows` rows take.
  static std::uint64_t workspace_bytes(const LayerShape::Experts& experts, int width, int rows);
  std::uint64_t allocated_bytes() const;

 private:
  // One expert's rows of a wave.
  struct Share {
    int expert = 0;
    int first = 0;  // of its assignments
    int count = 0;
    int group = 0;  // of its quantised rows
  };
  struct Assignment {
    int expert = 0;
    int row = 0;
    float weight = 0;
  };
  // A matrix's panels for one expert's rows.
  struct Job {
    const PackedMatrix* matrix = nullptr;
    const float* bias = nullptr;
    Activations rows;
    float* out = nullptr;
  };

  void choose(const Backend::Experts& experts, const Rows& rows);
  void run_wave(const Backend::Experts& experts, const Rows& rows, int first, int end);
  void quantize(const float* x, int inputs);
  void multiply(int outputs);

  const KernelTable& kernels_;
  ThreadPool& threads_;
  const CpuWeights& weights_;
  std::vector<Assignment> chosen_;  // by row, later by expert and row
  std::vector<Assignment> sorted_;
  std::vector<Share> shares_;  // of the wave
  std::vector<Job> jobs_;
  AlignedBuffer<float> rows_;  // [wave rows][width]
  AlignedBuffer<float> gate_;  // [wave rows][hidden]
  AlignedBuffer<float> up_;
  AlignedBuffer<float> down_;  // [wave rows][width]
  QuantizedRows quantized_;
};

}  // namespace kvasir
