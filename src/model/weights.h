// Maps the tensors of a model file to the weights of the backend.
// Thread-safety: immutable after load.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "gguf/reader.h"
#include "kvasir/status.h"
#include "model/config.h"

namespace kvasir {

struct Linear {
  WeightId matrix = kNoWeight;  // [outputs, inputs]
  WeightId bias = kNoWeight;    // [outputs], or none
};

struct Norm {
  WeightId weight = kNoWeight;  // [width]
  WeightId bias = kNoWeight;    // [width]; of LayerNorm only
};

// Rows of queries and keys, with their biases and norms, are reordered so that rotated pairs are adjacent, whatever
// their order in the file.
struct LayerWeights {
  Norm attention_norm;              // none without norms before
  Linear query;                     // [heads * head_dim, width]
  Linear key;                       // [kv_heads * head_dim, width]
  Linear value;                     // [kv_heads * head_dim, width]
  WeightId query_norm = kNoWeight;  // [head_dim], or of the whole row [heads * head_dim], or none
  WeightId key_norm = kNoWeight;    // [head_dim], or of the whole row [kv_heads * head_dim], or none
  WeightId sinks = kNoWeight;       // [heads], or none
  // Of latent attention; else none. The rotated part of keys comes first.
  Linear query_down;                     // [query rank, width]; none without a query rank
  WeightId query_down_norm = kNoWeight;  // [query rank]
  Linear plain_query;                    // [heads * plain, query rank or width]; `query` has the part that rotates
  Linear latent;                         // [rank, width]; `key` is the part that rotates
  WeightId latent_norm = kNoWeight;      // [rank]
  WeightId head_keys = kNoWeight;        // [rank, plain], the first head's; the others follow
  WeightId head_values = kNoWeight;      // [value, rank]; likewise
  Linear attention_gate;                 // [heads * head_dim, width], or none
  Linear attention_output;               // [width, heads * head_dim], or of a mixer [width, its output]
  // Of a layer with a state, in the order of its specification.
  std::vector<Linear> mixer_inputs;        // [floats of the input, width]
  std::vector<WeightId> mixer_parameters;  // vectors
  Norm attention_norm_after;               // of what the attention adds; or none
  Norm ffn_norm;                           // none without norms before, and where it is the attention's
  // The feed-forward network, or the one that all rows share beside experts.
  Linear gate;  // [hidden, width]; none without gating
  Linear up;    // [hidden, width]
  Linear down;  // [width, hidden]
  // The mixture of experts. An expert's matrices and biases are those of the first plus its number.
  Linear router;                        // [experts, width]
  WeightId selection_bias = kNoWeight;  // [experts], or none
  Linear expert_gate;                   // [hidden, width]
  Linear expert_up;                     // [hidden, width]
  Linear expert_down;                   // [width, hidden]
  WeightId shared_gate = kNoWeight;     // [width], or none
  WeightId expert_scales = kNoWeight;   // [experts], or none
  // Where the layer's own network is beside the experts; else none.
  WeightId router_norm = kNoWeight;  // [width]
  Norm network_norm_after;           // of what the layer's own network gives
  Norm expert_norm;
  Norm expert_norm_after;  // of what the experts give
  Norm ffn_norm_after;     // of what the feed-forward network adds; or none
  // Of a model with an embedding for each layer; else none.
  Linear per_layer_gate;       // [per-layer embedding, width]
  Linear per_layer_output;     // [width, per-layer embedding]
  Norm per_layer_norm;         // of what it adds
  WeightId scale = kNoWeight;  // [1], or none
};

struct Weights {
  WeightId embedding = kNoWeight;  // [vocabulary, width]
  WeightId positions = kNoWeight;  // [context, width], or none
  // An embedding of each token for each layer, or none.
  WeightId per_layer_embedding = kNoWeight;   // [vocabulary, layers * per-layer embedding]
  WeightId per_layer_projection = kNoWeight;  // [layers * per-layer embedding, width]
  WeightId per_layer_norm = kNoWeight;        // [per-layer embedding]: of each layer's part of the projection
  WeightId output = kNoWeight;                // [vocabulary, width]; the embedding where the file has none
  Norm output_norm;
  std::vector<LayerWeights> layers;
};

// The weights of a file, located and checked but not read.
struct WeightMap {
  Weights weights;
  std::vector<WeightPart> parts;             // by WeightId
  std::vector<const gguf::Tensor*> tensors;  // of the parts
};

// Errors: kDataLoss for missing or misshapen tensors; kUnsupported for unsupported types and tensors (named).
Result<WeightMap> map_weights(const gguf::File& file, const ModelConfig& config);

// Loads the weights into the backend straight from the mapped file. Releases the file's pages as they are read, so that
// no second copy of the weights stays resident. `progress` (may be empty) receives bytes done and bytes in total.
// `memory`: that of Backend::LoadOptions; its functions are not used. Errors: kResourceExhausted.
Status load_weights(const gguf::File& file, const WeightMap& map, Backend& backend,
                    const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                    const Backend::LoadOptions& memory = {});

}  // namespace kvasir
