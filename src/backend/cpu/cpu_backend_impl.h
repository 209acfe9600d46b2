// The CPU backend. Internal to src/backend/cpu.
#pragma once

#include <string_view>

#include "backend/cpu/cpu_adapters.h"
#include "backend/cpu/cpu_attention.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/cpu_experts.h"
#include "backend/cpu/cpu_weights.h"
#include "backend/cpu/quantized_rows.h"

namespace kvasir {

class CpuBackend final : public Backend {
 public:
  CpuBackend(const BackendShape& shape, const KernelTable* kernels, ThreadPool* threads)
      : shape_(shape),
        kernels_(*kernels),
        threads_(*threads),
        attention_(&shape_, kernels, threads),
        experts_(kernels, threads, &weights_),
        adapters_(kernels, threads) {}
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  std::string_view name() const override { return kernels_.name; }
  std::string arithmetic_id(const PageFormat& format) const override;
  std::uint64_t weight_bytes(std::span<const WeightPart> parts) const override {
    return CpuWeights::bytes_of(*kernels_.packing, parts);
  }
  Status load(std::span<const WeightPart> parts, const LoadOptions& options) override {
    return weights_.load(*kernels_.packing, parts, threads_, options);
  }
  Status lock_weights() override { return weights_.lock(); }
  std::uint64_t adapter_bytes(std::span<const LowRankPart> parts) const override {
    return CpuAdapters::bytes_of(*kernels_.packing, parts);
  }
  Status load_adapter(std::span<const LowRankPart> parts) override;
  std::unique_ptr<PageStore> new_page_store() override {
    return std::make_unique<CpuPageStore>(&kernels_, &threads_, shape_.rotations);
  }
  void begin(const Pass& pass) override;
  void embed(WeightId embedding, float scale, Activation to) override;
  void add_positions(WeightId positions) override;
  void rms_norm(Activation from, WeightId weight, float eps, Activation to) override;
  void layer_norm(Activation from, WeightId weight, WeightId bias, float eps, Activation to) override;
  void rms_norm_heads(Activation x, WeightId weight, int heads, float eps) override;
  void multiply(Activation from, std::span<const Product> products) override;
  void multiply_heads(Activation from, const HeadProduct& product, Activation to) override;
  void product_norms(WeightId matrix, const HeadColumns& columns, std::span<const float> vectors,
                     std::span<double> norms) override;
  void join_heads(Activation a, Activation b, int heads, Activation to) override;
  void activate(ActivationFunction function, Activation gate, Activation up) override;
  void activate(ActivationFunction function, Activation x) override;
  void add(Activation to, Activation x) override;
  void copy(Activation from, Columns columns, Activation to) override;
  void scale(Activation x, float factor, WeightId by) override;
  void scale_rows(Activation x, Activation gate, WeightId weights) override;
  void run_experts(const Experts& experts) override;
  void store(int layer) override;
  void attend(int layer, const AttentionWeights& weights) override;
  void mix(int layer, std::span<const WeightId> parameters) override;
  Outputs outputs(const OutputWeights& weights) override;
  std::uint64_t workspace_bytes(const WorkspaceRequest& request) const override;
  // Bytes of all buffers that workspace_bytes plans, as they stand.
  std::uint64_t allocated_workspace() const;
  std::uint64_t allocated_adapters() const { return adapters_.loaded_bytes(); }

 private:
  struct Job {
    const PackedMatrix* weights;
    const float* bias;  // [outputs], or none
    float* out;         // [rows, outputs]
  };
  struct Tensor {
    AlignedBuffer<float> data;
    int width = 0;
  };
  Tensor& tensor(Activation activation) { return tensors_[static_cast<std::size_t>(activation)]; }
  float* ensure(Activation activation, int width);
  void quantize(const float* x, int inputs, int rows);
  void multiply_rows(const float* x, int inputs, int rows, std::span<const Job> jobs);
  void normalize(const float* x, const OutputWeights& weights, int rows, float* out);

  BackendShape shape_;
  const KernelTable& kernels_;
  ThreadPool& threads_;
  CpuWeights weights_;
  CpuAttention attention_;
  CpuExperts experts_;
  CpuAdapters adapters_;
  Pass pass_;
  int rows_ = 0;
  std::span<const CpuAdapters::Rows> adapted_;  // of the pass
  Tensor tensors_[kActivations];
  AlignedBuffer<float> logits_;  // [rows wanted][vocabulary]
  QuantizedRows quantized_;
  AlignedBuffer<float> of_heads_;  // [heads][rows][inputs]: what matrices of heads are multiplied with
};

}  // namespace kvasir
