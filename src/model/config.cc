#include "model/config.h"

#include <algorithm>
#include <string_view>

#include "backend/backend.h"
#include "base/status.h"
#include "gguf/in_file.h"
#include "model/family.h"

namespace kvasir {
namespace {

Result<AttentionSpec> read_attention(Keys& keys, int width, bool latent) {
  AttentionSpec spec;
  KVASIR_ASSIGN_OR_RETURN(spec.heads, keys.positive("attention.head_count", kMaxHeads));
  if (!keys.has("attention.key_length") && width % spec.heads != 0)
    return data_loss("an embedding of {} does not divide among {} heads", width, spec.heads);
  const int most = latent ? kMaxHeadDim : kMaxValueDim;
  KVASIR_ASSIGN_OR_RETURN(spec.head_dim, keys.positive_or("attention.key_length", 1 << 16, width / spec.heads));
  KVASIR_ASSIGN_OR_RETURN(const int value_length, keys.positive_or("attention.value_length", 1 << 16, spec.head_dim));
  if (spec.head_dim > most || spec.head_dim < 2)
    return unsupported("a head dimension of {} is outside 2 to {}", spec.head_dim, most);
  if (value_length != spec.head_dim && !latent)
    return unsupported("keys of {} and values of {} dimensions: only equal ones are supported", spec.head_dim,
                       value_length);
  return spec;
}

Result<float> read_norm_eps(Keys& keys, NormKind norm) {
  const std::string_view key =
      norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
  KVASIR_ASSIGN_OR_RETURN(const double eps, keys.number(key));
  if (!(eps > 0 && eps < 1)) return data_loss("{} is {}; it must be above 0 and below 1", keys.name(key), eps);
  return static_cast<float>(eps);
}

// Other poolings (a first token, a classifier) are not supported: the model generates, but gives no embeddings.
Result<Pooling> read_pooling(Keys& keys) {
  if (!keys.has("pooling_type")) return Pooling::kNone;
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t type, keys.count("pooling_type"));
  return type == 1 ? Pooling::kMean : type == 3 ? Pooling::kLast : Pooling::kNone;
}

// Gives each layer its number of KV heads, 0 to layers without attention, and the size of its feed-forward network.
Status read_sizes_of_layers(Keys& keys, ModelConfig* config) {
  const int layers = config->layer_count();
  const int heads = config->layers.front().attention.heads;
  KVASIR_ASSIGN_OR_RETURN(const std::vector<int> kv_heads,
                          keys.of_layers("attention.head_count_kv", layers, kMaxHeads, heads));
  // Files whose layers all have experts need not say the size of other networks.
  if (!keys.has("feed_forward_length") && !keys.has("expert_feed_forward_length"))
    return data_loss("{} is missing", keys.name("feed_forward_length"));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<int> hidden, keys.of_layers("feed_forward_length", layers, 1 << 22, 0));
  for (std::size_t l = 0; l < config->layers.size(); ++l) {
    config->layers[l].attention.kv_heads = kv_heads[l];
    config->layers[l].feed_forward.hidden = hidden[l];
  }
  return {};
}

Status check_sizes_of_layers(const Keys& keys, const ModelConfig& config) {
  for (int l = 0; l < config.layer_count(); ++l) {
    const LayerSpec& layer = config.layers[static_cast<std::size_t>(l)];
    if (layer.experts && layer.experts->hidden < 1) return data_loss("the experts of layer {} have no size", l);
    const bool has_network = !layer.experts || layer.experts->beside_network;
    if (has_network && layer.feed_forward.hidden < 1)
      return data_loss("{}: the network of layer {} has no size", keys.name("feed_forward_length"), l);
    if (layer.state) continue;
    const AttentionSpec& attention = layer.attention;
    if (!attention.latent && attention.head_dim > kMaxValueDim)
      return unsupported("a head dimension of {} is outside 2 to {}", attention.head_dim, kMaxValueDim);
    if (attention.kv_heads < 1 || attention.heads % attention.kv_heads != 0)
      return data_loss("{}: {} query heads do not divide among {} KV heads, in layer {}",
                       keys.name("attention.head_count_kv"), attention.heads, attention.kv_heads, l);
  }
  return {};
}

// A policy decides alike for all layers that it governs.
Status check_governed(const ModelConfig& config) {
  if (config.governed_layers() == 0) return unsupported("no layer has attention: such models are not supported");
  int rotary = -1;  // of the layers that rotate
  for (const LayerSpec& layer : config.layers) {
    if (!config.is_governed(layer)) continue;
    const AttentionSpec& attention = layer.attention;
    if (!attention.shares_tables_with(config.governed()))
      return unsupported(
          "layers whose cache a policy governs differ in heads or windows: such models are not supported");
    if (config.rotary[static_cast<std::size_t>(attention.rotary)].dims == 0) continue;
    if (rotary >= 0 && rotary != attention.rotary)
      return unsupported("layers whose cache a policy governs rotate keys differently: such models are not supported");
    rotary = attention.rotary;
  }
  return {};
}

}  // namespace

std::string_view ModelConfig::architecture() const {
  return family->name;
}

bool ModelConfig::has_long_rotation() const {
  return family->long_rotation && !rotary.front().long_inverse_frequencies.empty();
}

std::int64_t ModelConfig::context_of(bool long_rotation) const {
  return has_long_rotation() && !long_rotation ? rotary.front().original_context : context;
}

bool ModelConfig::is_governed(const LayerSpec& layer) const {
  return !layer.state && layer.attention.keys_of < 0 &&
         (layer.attention.window == 0 ||
          std::ranges::all_of(layers, [](const LayerSpec& l) { return l.state || l.attention.window > 0; }));
}

int ModelConfig::governed_layers() const {
  return static_cast<int>(std::ranges::count_if(layers, [&](const LayerSpec& layer) { return is_governed(layer); }));
}

int ModelConfig::first_governed_layer() const {
  const auto first = std::ranges::find_if(layers, [&](const LayerSpec& layer) { return is_governed(layer); });
  return static_cast<int>(first - layers.begin());
}

const AttentionSpec& ModelConfig::governed() const {
  return layers[static_cast<std::size_t>(first_governed_layer())].attention;
}

namespace {

Result<ModelConfig> read_config(const gguf::File& file, std::span<const Family* const> known) {
  ModelConfig config;
  KVASIR_RETURN_IF_ERROR(refuse_adapter(file));
  if (file.tensors().empty() && file.find("tokenizer.ggml.tokens") != nullptr)
    return data_loss("this file has a tokenizer but no weights; give the model's own .gguf file");
  KVASIR_ASSIGN_OR_RETURN(const std::string_view architecture, file.get_string("general.architecture"));
  const auto family = std::ranges::find(known, architecture, &Family::name);
  if (family == known.end())
    return unsupported("architecture '{}' is not supported; supported: {}", architecture.substr(0, 32), family_names());
  config.family = *family;
  Keys keys(&file, architecture);
  if (file.find("general.name") != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(config.name, file.get_string("general.name"));
  }
  KVASIR_ASSIGN_OR_RETURN(int layers, keys.positive("block_count", 4096));
  if (keys.has("nextn_predict_layers")) {
    KVASIR_ASSIGN_OR_RETURN(const std::uint64_t further, keys.count("nextn_predict_layers"));
    if (further >= static_cast<std::uint64_t>(layers))
      return data_loss("{} is {}, and the file has {} layers", keys.name("nextn_predict_layers"), further, layers);
    config.further_layers = static_cast<int>(further);
    layers -= config.further_layers;
  }
  KVASIR_ASSIGN_OR_RETURN(config.width, keys.positive("embedding_length", 1 << 20));
  LayerSpec layer;
  layer.feed_forward = config.family->feed_forward;
  KVASIR_ASSIGN_OR_RETURN(config.pooling, read_pooling(keys));
  KVASIR_ASSIGN_OR_RETURN(config.context, keys.positive("context_length", 1 << 30));
  KVASIR_ASSIGN_OR_RETURN(layer.attention, read_attention(keys, config.width, config.family->latent));
  config.norm = config.family->norm;
  KVASIR_ASSIGN_OR_RETURN(config.norm_eps, read_norm_eps(keys, config.norm));
  config.layers.assign(static_cast<std::size_t>(layers), layer);
  KVASIR_RETURN_IF_ERROR(read_sizes_of_layers(keys, &config));
  const int head_dim = layer.attention.head_dim;
  KVASIR_ASSIGN_OR_RETURN(const int rotary, keys.positive_or("rope.dimension_count", kMaxHeadDim, head_dim / 2 * 2));
  if (rotary % 2 != 0 || rotary > head_dim)
    return data_loss("{} is {}, not an even number up to {}", keys.name("rope.dimension_count"), rotary, head_dim);
  const gguf::Tensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->dims.size() != 2)
    return data_loss("token_embd.weight is missing or no matrix: this file holds no whole model");
  if (embedding->dims[1] > 1 << 24) return data_loss("a vocabulary of {} is implausible", embedding->dims[1]);
  config.vocabulary = static_cast<int>(embedding->dims[1]);
  config.rotary.resize(1);
  KVASIR_ASSIGN_OR_RETURN(config.rotary.front(),
                          read_rotary_embedding(file, architecture, rotary, config.context, config.family->yarn,
                                                config.family->long_rotation));
  if (config.family->adjust != nullptr) KVASIR_RETURN_IF_ERROR(config.family->adjust(keys, &config));
  KVASIR_RETURN_IF_ERROR(keys.refuse_other_features());
  KVASIR_RETURN_IF_ERROR(check_sizes_of_layers(keys, config));
  KVASIR_RETURN_IF_ERROR(check_governed(config));
  return config;
}

}  // namespace

Result<ModelConfig> read_model_config(const gguf::File& file, std::span<const Family* const> known) {
  return gguf::in_file(read_config(file, known), file);
}

}  // namespace kvasir
