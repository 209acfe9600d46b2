// The hyper-parameters of a model, read and checked from a GGUF header.
#pragma once

#include <cstdint>
#include <string>

#include "gguf/reader.h"
#include "kvasir/status.h"
#include "model/architecture.h"
#include "model/rope.h"

namespace kvasir {

struct ModelConfig {
  const Architecture* architecture = nullptr;
  std::string name;  // general.name; may be empty
  int layers = 0;
  int width = 0;     // d, the length of the residual stream
  int heads = 0;     // query heads
  int kv_heads = 0;  // divides heads
  int head_dim = 0;
  int ffn = 0;
  int vocabulary = 0;
  std::int64_t context = 0;         // trained context, tokens
  std::int64_t sliding_window = 0;  // a token sees tokens less than this many positions before it; 0: all
  bool parallel_residual = false;   // x + attention(norm(x)) + ffn(norm'(x)) instead of one after the other
  float norm_eps = 0;
  float embedding_scale = 1;  // embeddings are multiplied by it
  RotaryEmbedding rope;

  int group() const { return heads / kv_heads; }
};

// Errors: kUnsupported for unknown architectures (lists the known ones) and for unsupported features (named); kDataLoss
// for values that contradict each other or the tensors.
Result<ModelConfig> read_model_config(const gguf::File& file);

}  // namespace kvasir
