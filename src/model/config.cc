#include "model/config.h"

#include <string_view>

#include "backend/backend.h"
#include "base/status.h"

namespace kvasir {
namespace {

// Looks keys up under the architecture's prefix.
class Keys {
 public:
  Keys(const gguf::File& file, std::string_view prefix) : file_(file), prefix_(std::string(prefix) + ".") {}

  std::string name(std::string_view key) const { return prefix_ + std::string(key); }
  bool has(std::string_view key) const { return file_.find(name(key)) != nullptr; }

  Result<int> positive(std::string_view key, std::uint64_t most) const {
    KVASIR_ASSIGN_OR_RETURN(const std::uint64_t value, file_.get_uint(name(key)));
    if (value == 0 || value > most) return data_loss("{} is {}, outside 1 to {}", name(key), value, most);
    return static_cast<int>(value);
  }
  Result<int> positive_or(std::string_view key, std::uint64_t most, int otherwise) const {
    if (!has(key)) return otherwise;
    return positive(key, most);
  }
  Result<double> number(std::string_view key) const { return file_.get_float(name(key)); }
  Result<bool> truth(std::string_view key) const { return file_.get_bool(name(key)); }

 private:
  const gguf::File& file_;
  std::string prefix_;
};

Status read_heads(const Keys& keys, ModelConfig* config) {
  KVASIR_ASSIGN_OR_RETURN(config->heads, keys.positive("attention.head_count", kMaxHeads));
  KVASIR_ASSIGN_OR_RETURN(config->kv_heads, keys.positive_or("attention.head_count_kv", kMaxHeads, config->heads));
  if (config->heads % config->kv_heads != 0)
    return data_loss("{} query heads do not divide among {} KV heads", config->heads, config->kv_heads);
  if (!keys.has("attention.key_length") && config->width % config->heads != 0)
    return data_loss("an embedding of {} does not divide among {} heads", config->width, config->heads);
  KVASIR_ASSIGN_OR_RETURN(config->head_dim,
                          keys.positive_or("attention.key_length", kMaxHeadDim, config->width / config->heads));
  KVASIR_ASSIGN_OR_RETURN(const int value_length,
                          keys.positive_or("attention.value_length", kMaxHeadDim, config->head_dim));
  if (config->head_dim > kMaxHeadDim || config->head_dim < 2)
    return unsupported("a head dimension of {} is outside 2 to {}", config->head_dim, kMaxHeadDim);
  if (value_length != config->head_dim)
    return unsupported("keys of {} and values of {} dimensions: only equal ones are supported", config->head_dim,
                       value_length);
  return {};
}

Status read_norm(const Keys& keys, ModelConfig* config) {
  const std::string_view key = config->architecture->norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon"
                                                                            : "attention.layer_norm_epsilon";
  KVASIR_ASSIGN_OR_RETURN(const double eps, keys.number(key));
  if (!(eps > 0 && eps < 1)) return data_loss("{} is {}, outside 0 to 1", keys.name(key), eps);
  config->norm_eps = static_cast<float>(eps);
  if (config->architecture->parallel_residual) {
    config->parallel_residual = true;
    if (keys.has("use_parallel_residual")) {
      KVASIR_ASSIGN_OR_RETURN(config->parallel_residual, keys.truth("use_parallel_residual"));
    }
  }
  return {};
}

// Refuses features that would change the results but are not implemented: no answer is better than a wrong one.
Status refuse_other_features(const Keys& keys) {
  struct Feature {
    std::string_view key;
    double neutral;
  };
  static constexpr Feature kFeatures[] = {
      {"expert_count", 0},           {"attention.clamp_kqv", 0},     {"attention.max_alibi_bias", 0},
      {"attn_logit_softcapping", 0}, {"final_logit_softcapping", 0}, {"logit_scale", 1},
      {"embedding_scale", 1},        {"residual_scale", 1},          {"attention.scale", 0},
  };
  for (const Feature& feature : kFeatures) {
    if (!keys.has(feature.key)) continue;
    KVASIR_ASSIGN_OR_RETURN(const double value, keys.number(feature.key));
    if (value != feature.neutral)
      return unsupported("{} = {}: models of this kind are not supported; use one without it", keys.name(feature.key),
                         value);
  }
  for (const std::string_view key : {"attention.sliding_window_pattern", "rope.dimension_sections"})
    if (keys.has(key))
      return unsupported("{}: models of this kind are not supported; use one without it", keys.name(key));
  if (keys.has("attention.causal")) {
    KVASIR_ASSIGN_OR_RETURN(const bool causal, keys.truth("attention.causal"));
    if (!causal)
      return unsupported("{} = false: only models that generate text are supported", keys.name("attention.causal"));
  }
  return {};
}

}  // namespace

Result<ModelConfig> read_model_config(const gguf::File& file) {
  ModelConfig config;
  if (file.tensors().empty() && file.find("tokenizer.ggml.tokens") != nullptr)
    return data_loss("this file has a tokenizer but no weights; give the model's own .gguf file");
  KVASIR_ASSIGN_OR_RETURN(const std::string_view architecture, file.get_string("general.architecture"));
  config.architecture = find_architecture(architecture);
  if (config.architecture == nullptr)
    return unsupported("architecture '{}' is not supported; supported: {}", architecture.substr(0, 32),
                       architecture_names());
  const Keys keys(file, architecture);
  if (file.find("general.name") != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(config.name, file.get_string("general.name"));
  }
  KVASIR_ASSIGN_OR_RETURN(config.layers, keys.positive("block_count", 4096));
  KVASIR_ASSIGN_OR_RETURN(config.width, keys.positive("embedding_length", 1 << 20));
  KVASIR_ASSIGN_OR_RETURN(config.ffn, keys.positive("feed_forward_length", 1 << 22));
  KVASIR_ASSIGN_OR_RETURN(config.context, keys.positive("context_length", 1 << 30));
  KVASIR_RETURN_IF_ERROR(read_heads(keys, &config));
  KVASIR_RETURN_IF_ERROR(read_norm(keys, &config));
  KVASIR_RETURN_IF_ERROR(refuse_other_features(keys));
  if (config.architecture->sliding_window && keys.has("attention.sliding_window")) {
    KVASIR_ASSIGN_OR_RETURN(const std::uint64_t window, file.get_uint(keys.name("attention.sliding_window")));
    config.sliding_window = static_cast<std::int64_t>(std::min<std::uint64_t>(window, 1u << 30));
  }
  KVASIR_ASSIGN_OR_RETURN(const int rotary,
                          keys.positive_or("rope.dimension_count", kMaxHeadDim, config.head_dim / 2 * 2));
  if (rotary % 2 != 0 || rotary > config.head_dim)
    return data_loss("{} is {}, not an even number up to {}", keys.name("rope.dimension_count"), rotary,
                     config.head_dim);
  const gguf::Tensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->dims.size() != 2)
    return data_loss("token_embd.weight is missing or no matrix: this file holds no whole model");
  if (embedding->dims[1] > 1 << 24) return data_loss("a vocabulary of {} is implausible", embedding->dims[1]);
  config.vocabulary = static_cast<int>(embedding->dims[1]);
  KVASIR_ASSIGN_OR_RETURN(config.rope, read_rotary_embedding(file, architecture, rotary, config.context));
  return config;
}

}  // namespace kvasir
