// Gemma 4 (Google 2026): windows beside layers that see everything, which have heads and rotations of their own; the
// last layers read the keys and values of earlier ones; norms of queries, keys and values; in small models an embedding
// of each token for each layer, in one a mixture of experts beside each layer's own network.
#include <cmath>

#include "backend/page_format.h"
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

// The heads and rotation of layers with a window; the usual keys are those of the other layers.
struct LocalHeads {
  int head_dim = 0;
  std::int64_t window = 0;
};

Result<LocalHeads> read_local_heads(Keys& keys, ModelConfig* model) {
  LocalHeads local;
  KVASIR_ASSIGN_OR_RETURN(local.window, keys.positive("attention.sliding_window", 1u << 24));
  const int head_dim = model->layers.front().attention.head_dim;
  KVASIR_ASSIGN_OR_RETURN(local.head_dim, keys.positive_or("attention.key_length_swa", kMaxValueDim, head_dim));
  KVASIR_ASSIGN_OR_RETURN(const int values,
                          keys.positive_or("attention.value_length_swa", kMaxValueDim, local.head_dim));
  KVASIR_ASSIGN_OR_RETURN(const int rotated, keys.positive_or("rope.dimension_count_swa", kMaxHeadDim, local.head_dim));
  if (values != local.head_dim || rotated > local.head_dim || rotated % 2 != 0 || local.head_dim < 2)
    return data_loss("layers with a window have keys of {} dimensions, {} of them rotated, and values of {}",
                     local.head_dim, rotated, values);
  KVASIR_RETURN_IF_ERROR(add_window_rotation(keys, rotated, model));
  return local;
}

// The last layers read the keys and values of the last layer of their kind before them.
Status share_keys(Keys& keys, ModelConfig* model) {
  if (!keys.has("attention.shared_kv_layers")) return {};
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t shared, keys.count("attention.shared_kv_layers"));
  const std::size_t layers = model->layers.size();
  if (shared >= layers)
    return data_loss("{} is {}, and the file has {} layers", keys.name("attention.shared_kv_layers"), shared, layers);
  for (std::size_t l = layers - shared; l < layers; ++l) {
    AttentionSpec& attention = model->layers[l].attention;
    for (std::size_t source = 0; source < layers - shared; ++source)
      if (model->layers[source].attention.window == attention.window) attention.keys_of = static_cast<int>(source);
    if (attention.keys_of < 0)
      return data_loss("layer {} has no keys, and no layer before layer {} has the same window", l, layers - shared);
    const AttentionSpec& source = model->layers[static_cast<std::size_t>(attention.keys_of)].attention;
    if (source.kv_heads != attention.kv_heads)
      return data_loss("layer {} reads keys of {} heads, and layer {} has {}", l, attention.kv_heads, attention.keys_of,
                       source.kv_heads);
  }
  return {};
}

Status adjust_gemma4(Keys& keys, ModelConfig* model) {
  constexpr std::uint64_t kMostPerLayer = 1 << 14;
  model->embedding_scale = std::sqrt(static_cast<float>(model->width));
  KVASIR_RETURN_IF_ERROR(read_scales(keys, model));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_windowed_layers(keys, *model, 6));
  KVASIR_ASSIGN_OR_RETURN(const LocalHeads local, read_local_heads(keys, model));
  if (keys.has("embedding_length_per_layer_input")) {
    KVASIR_ASSIGN_OR_RETURN(const std::uint64_t size, keys.count("embedding_length_per_layer_input"));
    if (size > kMostPerLayer)
      return data_loss("{} is {}, above {}", keys.name("embedding_length_per_layer_input"), size, kMostPerLayer);
    model->per_layer_embedding = static_cast<int>(size);
  }
  KVASIR_RETURN_IF_ERROR(read_experts_if_any(keys, model, {.normalized = true, .beside_network = true}));
  for (std::size_t l = 0; l < model->layers.size(); ++l) {
    LayerSpec& layer = model->layers[l];
    const auto has = [&](std::string_view tensor) {
      return keys.file().find_tensor(fmt::format("blk.{}.{}", l, tensor)) != nullptr;
    };
    layer.norms_after = true;
    layer.scaled = has("layer_output_scale.weight");
    if (layer.experts && layer.experts->shared_hidden > 0)
      return unsupported("{}: shared experts beside a network are not supported", keys.name("expert_shared_*"));
    if (layer.experts) layer.experts->output_scales = has("ffn_down_exps.scale");
    AttentionSpec& attention = layer.attention;
    attention.scale = 1;
    attention.value_norm = true;
    attention.values_from_keys = !has("attn_v.weight");
    if (!windowed[l]) continue;
    attention.head_dim = local.head_dim;
    attention.window = local.window;
    attention.rotary = 1;
  }
  return share_keys(keys, model);
}

}  // namespace

const Family& gemma4_family() {
  static constexpr Family kFamily{
      .name = "gemma4",
      .covers = "Gemma 4",
      .feed_forward = {.function = ActivationFunction::kGeluTanh},
      .tensors = {.pairs = RotaryPairs::kHalves, .qk_norm = Presence::kAlways},
      .adjust = adjust_gemma4,
  };
  return kFamily;
}

}  // namespace kvasir
