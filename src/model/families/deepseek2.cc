// DeepSeek-V2 (DeepSeek-AI, arXiv 2405.04434) and models built alike, such as GLM-4.7-Flash: latent attention, leading
// dense layers, then experts beside a shared network.
#include <cmath>

#include "backend/page_format.h"
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

// Files of GLM-4.7-Flash do not say how it chooses experts.
bool scores_by_sigmoid(const ModelConfig& model) {
  return (model.layer_count() == 47 || model.layer_count() == 48) && model.vocabulary == 154880;
}

Result<LatentSpec> read_latent(Keys& keys, const ModelConfig& model) {
  LatentSpec latent;
  const int head_dim = model.layers.front().attention.head_dim, rotated = model.rotary.front().dims;
  KVASIR_ASSIGN_OR_RETURN(latent.rank, keys.positive("attention.kv_lora_rank", kMaxHeadDim));
  if (keys.has("attention.q_lora_rank")) {
    KVASIR_ASSIGN_OR_RETURN(latent.query_rank, keys.positive("attention.q_lora_rank", 1 << 16));
  }
  KVASIR_ASSIGN_OR_RETURN(const int key, keys.positive("attention.key_length_mla", 4096));
  KVASIR_ASSIGN_OR_RETURN(latent.value, keys.positive("attention.value_length_mla", 4096));
  latent.plain = key - rotated;
  if (latent.rank + rotated != head_dim || latent.plain < 1)
    return data_loss("keys of {} dimensions, {} latent and {} rotated, and queries of {} contradict each other",
                     head_dim, latent.rank, rotated, key);
  return latent;
}

// Where YaRN stretches the context, scores grow by the square of a magnitude, and rotations leave theirs as it is.
Result<float> read_score_scale(Keys& keys, const LatentSpec& latent, int rotated) {
  double magnitude = 1;
  if (keys.has("rope.scaling.yarn_log_multiplier")) {
    KVASIR_ASSIGN_OR_RETURN(const double multiplier, keys.number("rope.scaling.yarn_log_multiplier"));
    KVASIR_ASSIGN_OR_RETURN(const double factor, keys.number("rope.scaling.factor"));
    if (!(factor >= 1 && factor < 1e6) || !(std::abs(multiplier) < 1e3))
      return data_loss("{} is {} with a factor of {}", keys.name("rope.scaling.yarn_log_multiplier"), multiplier,
                       factor);
    magnitude += multiplier * std::log(factor);  // the key has a tenth of the multiplier
  }
  return static_cast<float>(magnitude * magnitude / std::sqrt(static_cast<double>(latent.plain + rotated)));
}

Status adjust_deepseek2(Keys& keys, ModelConfig* model) {
  if (keys.has("attention.temperature_scale"))
    return unsupported("{}: models of this kind are not supported; use one without it",
                       keys.name("attention.temperature_scale"));
  KVASIR_ASSIGN_OR_RETURN(const LatentSpec latent, read_latent(keys, *model));
  KVASIR_ASSIGN_OR_RETURN(const float scale, read_score_scale(keys, latent, model->rotary.front().dims));
  for (LayerSpec& layer : model->layers) {
    AttentionSpec& attention = layer.attention;
    if (attention.kv_heads != 1)
      return data_loss("{} is {}: a token has one latent vector", keys.name("attention.head_count_kv"),
                       attention.kv_heads);
    attention.latent = latent;
    attention.scale = scale;
  }
  const ExpertScores scores = scores_by_sigmoid(*model) ? ExpertScores::kSigmoid : ExpertScores::kSoftmax;
  return read_experts_if_any(keys, model, {.scores = scores});
}

}  // namespace

const Family& deepseek2_family() {
  static constexpr Family kFamily{
      .name = "deepseek2",
      .covers = "DeepSeek-V2-Lite, GLM-4.7-Flash",
      .yarn = {.plain_magnitude = true},
      .latent = true,
      .adjust = adjust_deepseek2,
  };
  return kFamily;
}

}  // namespace kvasir
