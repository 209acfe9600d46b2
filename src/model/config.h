// The hyper-parameters of a llama-family model, read and checked from a GGUF header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/reader.h"
#include "kvasir/status.h"

namespace kvasir {

struct ModelConfig {
  std::string architecture;  // "llama"
  std::string name;          // general.name; may be empty
  int layers = 0;
  int width = 0;     // d, the length of the residual stream
  int heads = 0;     // query heads
  int kv_heads = 0;  // divides heads
  int head_dim = 0;
  int rotary = 0;  // dimensions of a head that are rotated; even, at most head_dim
  int ffn = 0;
  int vocabulary = 0;
  std::int64_t context = 0;  // trained context, tokens
  float rms_eps = 0;
  double rope_base = 10000;
  double rope_linear = 1;  // positions are divided by it (linear scaling)
  // Angles per position, [rotary / 2]: base^(-2i / rotary) / linear / factor[i], where the file has frequency factors
  // (Llama 3's rope_freqs.weight).
  std::vector<double> inverse_frequencies;

  int group() const { return heads / kv_heads; }
};

// Errors: kUnsupported for other architectures and for features of llama files that are not run (named), kDataLoss for
// values that contradict each other or the tensors.
Result<ModelConfig> read_model_config(const gguf::File& file);

}  // namespace kvasir
