// The weights of a model, packed for the kernels.
//
// All of them lie in one allocation; each matrix is packed straight from the mapped file, whose pages are given back to
// the system as they are read, so that no second copy of the weights stays resident.
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

struct Linear {
  PackedMatrix matrix;          // [outputs, inputs]
  const float* bias = nullptr;  // [outputs], or none
};

struct Norm {
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width]; of LayerNorm only
};

// Rows of queries and keys, their biases and norms are in the order in which pairs to rotate are adjacent, whatever
// their order in the file.
struct LayerWeights {
  Norm attention_norm;
  Linear query;                       // [heads * head_dim, width]
  Linear key;                         // [kv_heads * head_dim, width]
  Linear value;                       // [kv_heads * head_dim, width]
  const float* query_norm = nullptr;  // [head_dim], or none
  const float* key_norm = nullptr;    // [head_dim], or none
  Linear attention_output;            // [width, heads * head_dim]
  Norm ffn_norm;
  Linear gate;  // [ffn, width]; none without gating
  Linear up;    // [ffn, width]
  Linear down;  // [width, ffn]
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

  PackedMatrix embedding;  // [vocabulary, width]
  PackedMatrix output;     // [vocabulary, width]; the embedding where the file has none
  Norm output_norm;
  std::vector<LayerWeights> layers;
  std::uint64_t bytes = 0;  // allocated

 private:
  Weights() = default;
  std::byte* data_ = nullptr;
};

}  // namespace kvasir
