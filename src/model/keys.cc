#include "model/keys.h"

#include <algorithm>
#include <variant>

#include "base/status.h"

namespace kvasir {

Status refuse_adapter(const gguf::File& file) {
  if (const auto type = file.get_string("general.type"); !type.ok() || *type != "adapter") return {};
  return invalid_argument("this file is a LoRA adapter, not a model; give it with --lora, and the model it is for");
}

Result<int> Keys::positive(std::string_view key, std::uint64_t most) {
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t value, count(key));
  if (value == 0 || value > most) return data_loss("{} is {}, outside 1 to {}", name(key), value, most);
  return static_cast<int>(value);
}

Result<int> Keys::positive_or(std::string_view key, std::uint64_t most, int otherwise) {
  if (!has(key)) return otherwise;
  return positive(key, most);
}

Result<double> Keys::number(std::string_view key) {
  read_.emplace(key);
  return file_.get_float(name(key));
}

Result<bool> Keys::truth(std::string_view key) {
  read_.emplace(key);
  return file_.get_bool(name(key));
}

Result<std::uint64_t> Keys::count(std::string_view key) {
  read_.emplace(key);
  return file_.get_uint(name(key));
}

Result<std::vector<std::int64_t>> Keys::list(std::string_view key) {
  read_.emplace(key);
  return file_.get_ints(name(key));
}

Result<std::vector<int>> Keys::of_layers(std::string_view key, int layers, int most, int otherwise) {
  const auto count_of = static_cast<std::size_t>(layers);
  std::vector<int> numbers(count_of, otherwise);
  const gguf::Value* value = file_.find(name(key));
  if (value == nullptr) return numbers;
  if (!std::holds_alternative<gguf::Array>(value->data)) {
    KVASIR_ASSIGN_OR_RETURN(const std::uint64_t one, count(key));
    if (one > static_cast<std::uint64_t>(most)) return data_loss("{} is {}, above {}", name(key), one, most);
    std::ranges::fill(numbers, static_cast<int>(one));
    return numbers;
  }
  KVASIR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> listed, list(key));
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t blocks, count("block_count"));
  if (listed.size() != count_of && listed.size() != blocks)
    return data_loss("{} has {} values for {} layers", name(key), listed.size(), layers);
  for (std::size_t l = 0; l < count_of; ++l) {
    if (listed[l] < 0 || listed[l] > most)
      return data_loss("{}[{}] is {}, outside 0 to {}", name(key), l, listed[l], most);
    numbers[l] = static_cast<int>(listed[l]);
  }
  return numbers;
}

Status Keys::refuse_other_features() const {
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
    if (!has(feature.key) || read_.contains(feature.key)) continue;
    KVASIR_ASSIGN_OR_RETURN(const double value, file_.get_float(name(feature.key)));
    if (value != feature.neutral)
      return unsupported("{} = {}: models of this kind are not supported; use one without it", name(feature.key),
                         value);
  }
  for (const std::string_view key :
       {"attention.sliding_window_pattern", "rope.dimension_sections", "attention.kv_lora_rank"})
    if (has(key) && !read_.contains(key))
      return unsupported("{}: models of this kind are not supported; use one without it", name(key));
  if (has("attention.causal")) {
    KVASIR_ASSIGN_OR_RETURN(const bool causal, file_.get_bool(name("attention.causal")));
    if (!causal)
      return unsupported("{} = false: only models that generate text are supported", name("attention.causal"));
  }
  return {};
}

}  // namespace kvasir
