#include "model/family.h"

#include <algorithm>
#include <variant>

#include "base/status.h"

namespace kvasir {

std::string family_names() {
  std::string names;
  for (const Family* family : families()) {
    if (!names.empty()) names += ", ";
    names += family->name;
  }
  return names;
}

Status read_window(Keys& keys, ModelConfig* model) {
  if (!keys.has("attention.sliding_window")) return {};
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t window, keys.count("attention.sliding_window"));
  for (LayerSpec& layer : model->layers)
    layer.attention.window = static_cast<std::int64_t>(std::min<std::uint64_t>(window, 1u << 30));
  return {};
}

Result<std::vector<bool>> read_windowed_layers(Keys& keys, const ModelConfig& model, int pattern) {
  constexpr std::string_view kKey = "attention.sliding_window_pattern";
  const auto layers = static_cast<std::size_t>(model.layer_count());
  std::vector<bool> windowed(layers);
  if (keys.has(kKey) && std::holds_alternative<gguf::Array>(keys.file().find(keys.name(kKey))->data)) {
    KVASIR_ASSIGN_OR_RETURN(const std::vector<int> listed, keys.of_layers(kKey, model.layer_count(), 1, 0));
    for (std::size_t l = 0; l < layers; ++l) windowed[l] = listed[l] != 0;
    return windowed;
  }
  KVASIR_ASSIGN_OR_RETURN(const int every, keys.positive_or(kKey, 4096, pattern));
  for (std::size_t l = 0; l < layers; ++l) windowed[l] = (l + 1) % static_cast<std::size_t>(every) != 0;
  return windowed;
}

Status read_rotating_windows(Keys& keys, ModelConfig* model, int pattern) {
  KVASIR_ASSIGN_OR_RETURN(const int window, keys.positive("attention.sliding_window", 1u << 24));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_windowed_layers(keys, *model, pattern));
  model->rotary.emplace_back();
  for (std::size_t l = 0; l < model->layers.size(); ++l) {
    AttentionSpec& attention = model->layers[l].attention;
    if (windowed[l]) {
      attention.window = window;
    } else {
      attention.rotary = 1;
    }
  }
  return {};
}

void give_norms_only_after(ModelConfig* model) {
  for (LayerSpec& layer : model->layers) {
    layer.norms_before = false;
    layer.norms_after = true;
  }
}

Status read_experts(Keys& keys, ModelConfig* model, const ExpertsSpec& usual) {
  ExpertsSpec experts = usual;
  KVASIR_ASSIGN_OR_RETURN(experts.count, keys.positive("expert_count", 4096));
  KVASIR_ASSIGN_OR_RETURN(experts.used, keys.positive("expert_used_count", static_cast<std::uint64_t>(experts.count)));
  if (keys.has("expert_feed_forward_length")) {
    KVASIR_ASSIGN_OR_RETURN(experts.hidden, keys.positive("expert_feed_forward_length", 1 << 22));
  } else {
    experts.hidden = model->layers.front().feed_forward.hidden;
  }
  if (keys.has("expert_shared_feed_forward_length")) {
    KVASIR_ASSIGN_OR_RETURN(experts.shared_hidden, keys.positive("expert_shared_feed_forward_length", 1 << 22));
  } else if (keys.has("expert_shared_count")) {
    KVASIR_ASSIGN_OR_RETURN(const std::uint64_t shared, keys.count("expert_shared_count"));
    if (shared > 1024) return data_loss("{} is {}, above 1024", keys.name("expert_shared_count"), shared);
    if (static_cast<std::uint64_t>(experts.hidden) * shared > 1 << 22)
      return data_loss("{} shared experts of {} are implausible", shared, experts.hidden);
    experts.shared_hidden = experts.hidden * static_cast<int>(shared);
  }
  if (keys.has("expert_weights_scale")) {
    KVASIR_ASSIGN_OR_RETURN(const double scale, keys.number("expert_weights_scale"));
    if (!(scale >= 0 && scale < 1e6)) return data_loss("{} is {}", keys.name("expert_weights_scale"), scale);
    if (scale != 0) experts.scale = static_cast<float>(scale);
  }
  if (keys.has("expert_weights_norm")) {
    KVASIR_ASSIGN_OR_RETURN(experts.normalized, keys.truth("expert_weights_norm"));
  }
  if (keys.has("expert_gating_func")) {
    KVASIR_ASSIGN_OR_RETURN(const std::uint64_t function, keys.count("expert_gating_func"));
    constexpr ExpertScores kScores[] = {ExpertScores::kSoftmax, ExpertScores::kSigmoid, ExpertScores::kSoftmaxOfChosen};
    if (function > 3)
      return unsupported("{} = {}: this way to choose experts is not supported", keys.name("expert_gating_func"),
                         function);
    if (function > 0) experts.scores = kScores[function - 1];
  }
  for (const std::string_view key : {"expert_group_count", "expert_group_used_count"}) {
    if (!keys.has(key)) continue;
    KVASIR_ASSIGN_OR_RETURN(const std::uint64_t groups, keys.count(key));
    if (groups > 1) return unsupported("{} = {}: experts in groups are not supported", keys.name(key), groups);
  }
  std::uint64_t dense = 0;
  if (keys.has("leading_dense_block_count")) {
    KVASIR_ASSIGN_OR_RETURN(dense, keys.count("leading_dense_block_count"));
  }
  for (std::size_t l = dense; l < model->layers.size(); ++l) {
    experts.selection_bias = keys.file().find_tensor(fmt::format("blk.{}.exp_probs_b.bias", l)) != nullptr;
    model->layers[l].experts = experts;
  }
  return {};
}

Status read_experts_if_any(Keys& keys, ModelConfig* model, const ExpertsSpec& usual) {
  if (!keys.has("expert_count")) return {};
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t experts, keys.count("expert_count"));
  return experts > 0 ? read_experts(keys, model, usual) : Status();
}

Status add_window_rotation(Keys& keys, int dims, ModelConfig* model) {
  double base = 1e4;
  if (keys.has("rope.freq_base_swa")) {
    KVASIR_ASSIGN_OR_RETURN(base, keys.number("rope.freq_base_swa"));
  }
  KVASIR_ASSIGN_OR_RETURN(RotaryEmbedding rotary, plain_rotary_embedding(dims, base));
  model->rotary.push_back(std::move(rotary));
  return {};
}

Status read_scales(Keys& keys, ModelConfig* model) {
  const auto read = [&](std::string_view key, float* to) -> Status {
    if (!keys.has(key)) return {};
    KVASIR_ASSIGN_OR_RETURN(const double value, keys.number(key));
    if (!(value >= 0 && value < 1e9)) return data_loss("{} is {}, outside 0 to 1e9", keys.name(key), value);
    if (value != 0) *to = static_cast<float>(value);
    return {};
  };
  AttentionSpec attention;
  KVASIR_RETURN_IF_ERROR(read("embedding_scale", &model->embedding_scale));
  KVASIR_RETURN_IF_ERROR(read("residual_scale", &model->residual_scale));
  KVASIR_RETURN_IF_ERROR(read("logit_scale", &model->logit_scale));
  KVASIR_RETURN_IF_ERROR(read("final_logit_softcapping", &model->logit_softcap));
  KVASIR_RETURN_IF_ERROR(read("attention.scale", &attention.scale));
  KVASIR_RETURN_IF_ERROR(read("attn_logit_softcapping", &attention.softcap));
  for (LayerSpec& layer : model->layers) {
    layer.attention.scale = attention.scale;
    layer.attention.softcap = attention.softcap;
  }
  return {};
}

}  // namespace kvasir
