// The weights of a llama-family model, packed for the kernels.
//
// All of them lie in one allocation; each matrix is packed straight from the mapped file, whose pages are then given
// back to the system, so that no second copy of the weights stays resident.
// Thread-safety: immutable after load.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "gguf/reader.h"
#include "kernels/kernels.h"
#include "kvasir/status.h"
#include "model/config.h"

namespace kvasir {

struct LayerWeights {
  const float* attention_norm = nullptr;  // [width]
  PackedMatrix query;                     // [heads * head_dim, width]
  PackedMatrix key;                       // [kv_heads * head_dim, width]
  PackedMatrix value;                     // [kv_heads * head_dim, width]
  PackedMatrix attention_output;          // [width, heads * head_dim]
  const float* ffn_norm = nullptr;        // [width]
  PackedMatrix gate;                      // [ffn, width]
  PackedMatrix up;                        // [ffn, width]
  PackedMatrix down;                      // [width, ffn]
};

class Weights {
 public:
  // `progress` (may be empty) hears bytes done and bytes in all. Errors: kDataLoss for missing or misshapen tensors,
  // kUnsupported for types and tensors that are not run (named), kResourceExhausted.
  static Result<std::unique_ptr<Weights>> load(const gguf::File& file, const ModelConfig& config, ThreadPool& threads,
                                               const std::function<void(std::uint64_t, std::uint64_t)>& progress);
  // Bytes that load would allocate, from the header alone. Errors: as load, less kResourceExhausted.
  static Result<std::uint64_t> plan_bytes(const gguf::File& file, const ModelConfig& config);

  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;
  ~Weights();

  PackedMatrix embedding;              // [vocabulary, width]
  PackedMatrix output;                 // [vocabulary, width]; the embedding where the file has none
  const float* output_norm = nullptr;  // [width]
  std::vector<LayerWeights> layers;
  std::uint64_t bytes = 0;  // allocated

 private:
  Weights() = default;
  std::byte* data_ = nullptr;
};

}  // namespace kvasir
