// Qwen 3.5 and later (Alibaba 2026): three layers of Gated DeltaNet for each of gated attention, a quarter of a head
// rotated.
#include "model/families/hybrids/qwen35.h"

#include "base/status.h"
#include "model/mixers/gated_delta_net.h"

namespace kvasir {
namespace {

Result<std::vector<int>> read_recurrent_layers(Keys& keys, const ModelConfig& model) {
  const auto layers = static_cast<std::size_t>(model.layer_count());
  if (keys.has("attention.recurrent_layers"))
    return keys.of_layers("attention.recurrent_layers", model.layer_count(), 1, 0);
  KVASIR_ASSIGN_OR_RETURN(const int interval, keys.positive_or("full_attention_interval", 4096, 4));
  std::vector<int> recurrent(layers);
  for (std::size_t l = 0; l < layers; ++l) recurrent[l] = (l + 1) % static_cast<std::size_t>(interval) != 0 ? 1 : 0;
  return recurrent;
}

Result<GatedDeltaNet::Sizes> read_sizes(Keys& keys) {
  GatedDeltaNet::Sizes sizes;
  KVASIR_ASSIGN_OR_RETURN(sizes.taps, keys.positive("ssm.conv_kernel", GatedDeltaNet::kMostTaps));
  KVASIR_ASSIGN_OR_RETURN(sizes.key_dim, keys.positive("ssm.state_size", 1024));
  KVASIR_ASSIGN_OR_RETURN(sizes.key_heads, keys.positive("ssm.group_count", 1024));
  KVASIR_ASSIGN_OR_RETURN(sizes.value_heads, keys.positive("ssm.time_step_rank", 4096));
  KVASIR_ASSIGN_OR_RETURN(const int inner, keys.positive("ssm.inner_size", 1u << 20));
  if (sizes.taps < 2 || sizes.value_heads % sizes.key_heads != 0 || inner % sizes.value_heads != 0)
    return data_loss("{}*: {} taps, {} key heads, {} value heads and {} values contradict each other",
                     keys.name("ssm."), sizes.taps, sizes.key_heads, sizes.value_heads, inner);
  sizes.value_dim = inner / sizes.value_heads;
  if (sizes.value_dim > 1024) return unsupported("value heads of {} dimensions are not supported", sizes.value_dim);
  return sizes;
}

}  // namespace

// Text has one position for all sections of rotated dimensions.
Status read_delta_nets(Keys& keys, ModelConfig* model) {
  if (keys.has("rope.dimension_sections")) KVASIR_RETURN_IF_ERROR(keys.list("rope.dimension_sections").status());
  KVASIR_ASSIGN_OR_RETURN(const GatedDeltaNet::Sizes sizes, read_sizes(keys));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<int> recurrent, read_recurrent_layers(keys, *model));
  const auto mixer = std::make_shared<GatedDeltaNet>(sizes, model->norm_eps);
  const auto size = [](int n) { return static_cast<std::uint64_t>(n); };
  for (std::size_t l = 0; l < model->layers.size(); ++l) {
    LayerSpec& layer = model->layers[l];
    if (recurrent[l] == 0) {
      layer.attention.gated = true;
      continue;
    }
    layer.state = StateSpec{
        .mixer = mixer,
        .inputs = {"attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha"},
        .output = "ssm_out",
        .parameters = {{"ssm_conv1d.weight", {size(sizes.taps), size(mixer->channels())}},
                       {"ssm_dt.bias", {size(sizes.value_heads)}},
                       {"ssm_a", {size(sizes.value_heads)}},
                       {"ssm_norm.weight", {size(sizes.value_dim)}}},
    };
  }
  return {};
}

const Family& qwen35_family() {
  static constexpr Family kFamily{
      .name = "qwen35",
      .covers = "Qwen3.5 (dense), Qwen3.6-27B, Qwen3.8-27B",
      .tensors = kQwen35Tensors,
      .adjust = read_delta_nets,
  };
  return kFamily;
}

}  // namespace kvasir
