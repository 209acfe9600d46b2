#include "model/config.h"

#include <cmath>
#include <cstring>

#include "base/status.h"
#include "kernels/kernels.h"

namespace kvasir {
namespace {

constexpr std::string_view kArchitecture = "llama";

Result<int> positive(const gguf::File& file, std::string_view key, std::uint64_t most) {
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t value, file.get_uint(key));
  if (value == 0 || value > most) return data_loss("{} is {}, outside 1 to {}", key, value, most);
  return static_cast<int>(value);
}

Result<int> positive_or(const gguf::File& file, std::string_view key, std::uint64_t most, int otherwise) {
  if (file.find(key) == nullptr) return otherwise;
  return positive(file, key, most);
}

Status read_rope(const gguf::File& file, ModelConfig* config) {
  if (file.find("llama.rope.freq_base") != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(config->rope_base, file.get_float("llama.rope.freq_base"));
    if (!(config->rope_base > 1)) return data_loss("llama.rope.freq_base is {}, not above 1", config->rope_base);
  }
  if (file.find("llama.rope.scaling.type") != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(const std::string_view type, file.get_string("llama.rope.scaling.type"));
    if (type == "linear") {
      KVASIR_ASSIGN_OR_RETURN(config->rope_linear, file.get_float("llama.rope.scaling.factor"));
    } else if (type != "none") {
      return unsupported("RoPE scaling '{}' is not supported; none, linear and frequency factors (llama3) are",
                         type.substr(0, 32));
    }
  } else if (file.find("llama.rope.scale_linear") != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(config->rope_linear, file.get_float("llama.rope.scale_linear"));
  }
  if (!(config->rope_linear > 0)) return data_loss("the RoPE scaling factor is {}, not positive", config->rope_linear);

  const auto pairs = static_cast<std::size_t>(config->rotary / 2);
  config->inverse_frequencies.resize(pairs);
  for (std::size_t i = 0; i < pairs; ++i)
    config->inverse_frequencies[i] =
        std::pow(config->rope_base, -2.0 * static_cast<double>(i) / config->rotary) / config->rope_linear;

  const gguf::Tensor* factors = file.find_tensor("rope_freqs.weight");
  if (factors == nullptr) return {};
  if (factors->type != static_cast<std::uint32_t>(DType::kF32) || factors->elements != pairs)
    return data_loss("rope_freqs.weight must hold {} F32 values, one per rotated pair", pairs);
  if (factors->bytes.size() != pairs * sizeof(float)) return {};  // opened for its header alone
  for (std::size_t i = 0; i < pairs; ++i) {
    float factor;
    std::memcpy(&factor, factors->bytes.data() + i * sizeof factor, sizeof factor);
    if (!(factor > 0) || !std::isfinite(factor))
      return data_loss("rope_freqs.weight[{}] is {}, not positive", i, factor);
    config->inverse_frequencies[i] /= static_cast<double>(factor);
  }
  return {};
}

}  // namespace

Result<ModelConfig> read_model_config(const gguf::File& file) {
  ModelConfig config;
  KVASIR_ASSIGN_OR_RETURN(const std::string_view architecture, file.get_string("general.architecture"));
  if (architecture != kArchitecture)
    return unsupported("architecture '{}' is not supported; supported: {}", architecture.substr(0, 32), kArchitecture);
  config.architecture = architecture;
  if (file.find("general.name") != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(config.name, file.get_string("general.name"));
  }
  KVASIR_ASSIGN_OR_RETURN(config.layers, positive(file, "llama.block_count", 4096));
  KVASIR_ASSIGN_OR_RETURN(config.width, positive(file, "llama.embedding_length", 1 << 20));
  KVASIR_ASSIGN_OR_RETURN(config.heads, positive(file, "llama.attention.head_count", kMaxHeads));
  KVASIR_ASSIGN_OR_RETURN(config.kv_heads, positive_or(file, "llama.attention.head_count_kv", kMaxHeads, config.heads));
  KVASIR_ASSIGN_OR_RETURN(config.ffn, positive(file, "llama.feed_forward_length", 1 << 22));
  KVASIR_ASSIGN_OR_RETURN(config.context, positive(file, "llama.context_length", 1 << 30));
  if (config.heads % config.kv_heads != 0)
    return data_loss("{} query heads do not divide among {} KV heads", config.heads, config.kv_heads);
  if (file.find("llama.attention.key_length") == nullptr && config.width % config.heads != 0)
    return data_loss("an embedding of {} does not divide among {} heads", config.width, config.heads);
  KVASIR_ASSIGN_OR_RETURN(config.head_dim,
                          positive_or(file, "llama.attention.key_length", kMaxHeadDim, config.width / config.heads));
  KVASIR_ASSIGN_OR_RETURN(const int value_length,
                          positive_or(file, "llama.attention.value_length", kMaxHeadDim, config.head_dim));
  if (config.head_dim > kMaxHeadDim || config.head_dim < 2)
    return unsupported("a head dimension of {} is outside 2 to {}", config.head_dim, kMaxHeadDim);
  if (value_length != config.head_dim)
    return unsupported("keys of {} and values of {} dimensions: only equal ones are supported", config.head_dim,
                       value_length);
  KVASIR_ASSIGN_OR_RETURN(config.rotary,
                          positive_or(file, "llama.rope.dimension_count", kMaxHeadDim, config.head_dim / 2 * 2));
  if (config.rotary % 2 != 0 || config.rotary > config.head_dim)
    return data_loss("llama.rope.dimension_count is {}, not an even number up to {}", config.rotary, config.head_dim);
  KVASIR_ASSIGN_OR_RETURN(const double eps, file.get_float("llama.attention.layer_norm_rms_epsilon"));
  if (!(eps > 0 && eps < 1)) return data_loss("llama.attention.layer_norm_rms_epsilon is {}, outside 0 to 1", eps);
  config.rms_eps = static_cast<float>(eps);
  for (const std::string_view key : {"llama.expert_count", "llama.attention.sliding_window"}) {
    if (file.find(key) == nullptr) continue;
    KVASIR_ASSIGN_OR_RETURN(const std::uint64_t value, file.get_uint(key));
    if (value > 0) return unsupported("{} = {}: this kind of llama model is not supported yet", key, value);
  }
  const gguf::Tensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->dims.size() != 2)
    return data_loss("token_embd.weight is missing or no matrix: this file holds no whole model");
  if (embedding->dims[1] > 1 << 24) return data_loss("a vocabulary of {} is implausible", embedding->dims[1]);
  config.vocabulary = static_cast<int>(embedding->dims[1]);
  KVASIR_RETURN_IF_ERROR(read_rope(file, &config));
  return config;
}

}  // namespace kvasir
