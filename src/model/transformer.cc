#include "model/transformer.h"

#include <cmath>
#include <numbers>

#include "base/check.h"
#include "model/family.h"

namespace kvasir {

BackendShape backend_shape(const ModelConfig& config) {
  BackendShape shape;
  shape.width = config.width;
  shape.vocabulary = config.vocabulary;
  shape.per_layer = config.per_layer_embedding;
  for (const RotaryEmbedding& rotary : config.rotary)
    shape.rotations.push_back({rotary.dims, rotary.inverse_frequencies, rotary.magnitude});
  if (config.has_long_rotation())
    for (const RotaryEmbedding& rotary : config.rotary)
      shape.rotations.push_back({rotary.dims, rotary.long_inverse_frequencies, rotary.magnitude});
  for (const LayerSpec& layer : config.layers) {
    LayerShape::Experts experts;
    if (layer.experts)
      experts = {layer.experts->count, layer.experts->used, layer.experts->hidden, layer.experts->beside_network};
    const bool shared = layer.experts && !layer.experts->beside_network;
    const int hidden = shared ? layer.experts->shared_hidden : layer.feed_forward.hidden;
    if (layer.state) {
      shape.layers.push_back({.hidden = hidden, .experts = experts, .mixer = layer.state->mixer});
      continue;
    }
    const AttentionSpec& attention = layer.attention;
    LayerShape::Latent latent;
    if (const std::optional<LatentSpec>& l = attention.latent) latent = {l->query_rank, l->rank, l->plain, l->value};
    shape.layers.push_back({.heads = attention.heads,
                            .kv_heads = attention.kv_heads,
                            .head_dim = attention.head_dim,
                            .hidden = hidden,
                            .windowed = attention.window > 0,
                            .rotation = attention.rotary,
                            .scale = attention.scale,
                            .softcap = attention.softcap,
                            .temperature = attention.temperature,
                            .temperature_span = attention.temperature_span,
                            .gated = attention.gated,
                            .latent = latent,
                            .keys_of = attention.keys_of,
                            .experts = experts});
  }
  return shape;
}

// kResidual, and kPerLayer where the model has it: (norm(projection * x / sqrt(width)) + e * sqrt(size)) / sqrt(2) for
// the first embedding x of a token and its second, e.
void Transformer::embed() const {
  backend_.embed(weights_.embedding, config_.embedding_scale, Activation::kResidual);
  if (weights_.positions != kNoWeight) backend_.add_positions(weights_.positions);
  const int size = config_.per_layer_embedding;
  if (size == 0) return;
  multiply(Activation::kResidual, {weights_.per_layer_projection}, Activation::kPerLayer);
  backend_.scale(Activation::kPerLayer, 1 / std::sqrt(static_cast<float>(config_.width)), kNoWeight);
  backend_.rms_norm_heads(Activation::kPerLayer, weights_.per_layer_norm, config_.layer_count(), config_.norm_eps);
  backend_.embed(weights_.per_layer_embedding, std::sqrt(static_cast<float>(size)), Activation::kUp);
  backend_.add(Activation::kPerLayer, Activation::kUp);
  backend_.scale(Activation::kPerLayer, 1 / std::numbers::sqrt2_v<float>, kNoWeight);
}

void Transformer::multiply(Activation from, const Linear& by, Activation to) const {
  const Backend::Product product{by.matrix, by.bias, to};
  backend_.multiply(from, {&product, 1});
}

void Transformer::normalize(Activation from, const Norm& norm, Activation to) const {
  if (norm.weight == kNoWeight) {
    backend_.copy(from, {}, to);
  } else if (config_.norm == NormKind::kRms) {
    backend_.rms_norm(from, norm.weight, config_.norm_eps, to);
  } else {
    backend_.layer_norm(from, norm.weight, norm.bias, config_.norm_eps, to);
  }
}

// From kNormalized to kProjected.
void Transformer::attend_latent(int number, const AttentionSpec& spec, const LayerWeights& layer) const {
  const LatentSpec& latent = *spec.latent;
  Activation from = Activation::kNormalized;
  if (latent.query_rank > 0) {
    multiply(from, layer.query_down, Activation::kUp);
    backend_.rms_norm_heads(Activation::kUp, layer.query_down_norm, 1, config_.norm_eps);
    from = Activation::kUp;
  }
  const Backend::Product queries[] = {{layer.plain_query.matrix, layer.plain_query.bias, Activation::kGate},
                                      {layer.query.matrix, layer.query.bias, Activation::kValue}};
  backend_.multiply(from, queries);
  backend_.multiply_heads(Activation::kGate, {layer.head_keys, spec.heads, 0}, Activation::kAttention);
  backend_.join_heads(Activation::kValue, Activation::kAttention, spec.heads, Activation::kQuery);
  const Backend::Product keys[] = {{layer.key.matrix, layer.key.bias, Activation::kValue},
                                   {layer.latent.matrix, layer.latent.bias, Activation::kGate}};
  backend_.multiply(Activation::kNormalized, keys);
  backend_.rms_norm_heads(Activation::kGate, layer.latent_norm, 1, config_.norm_eps);
  backend_.join_heads(Activation::kValue, Activation::kGate, 1, Activation::kKey);
  backend_.store(number);
  backend_.attend(number, {});
  const int rotated = spec.head_dim - latent.rank;
  backend_.multiply_heads(Activation::kAttention, {layer.head_values, spec.heads, rotated}, Activation::kUp);
  multiply(Activation::kUp, layer.attention_output, Activation::kProjected);
}

// From kNormalized to kProjected.
void Transformer::attend(int number, const AttentionSpec& spec, const LayerWeights& layer) const {
  const Backend::Product products[] = {{layer.query.matrix, layer.query.bias, Activation::kQuery},
                                       {layer.key.matrix, layer.key.bias, Activation::kKey},
                                       {layer.value.matrix, layer.value.bias, Activation::kValue},
                                       {layer.attention_gate.matrix, layer.attention_gate.bias, Activation::kGate}};
  const bool own_keys = spec.keys_of < 0;
  backend_.multiply(Activation::kNormalized, std::span(products).first(!own_keys ? 1 : spec.gated ? 4 : 3));
  const bool of_row = config_.family->tensors.qk_norm_of_row;
  // A rotation keeps norms. So behind it only the weights are left to multiply by, those of keys at the query.
  const bool after = config_.family->tensors.qk_norm_after_rotation;
  if (layer.query_norm != kNoWeight)
    backend_.rms_norm_heads(Activation::kQuery, after ? kNoWeight : layer.query_norm, of_row ? 1 : spec.heads,
                            config_.norm_eps);
  if (layer.key_norm != kNoWeight)
    backend_.rms_norm_heads(Activation::kKey, after ? kNoWeight : layer.key_norm, of_row ? 1 : spec.kv_heads,
                            config_.norm_eps);
  if (own_keys) {
    if (spec.value_norm) backend_.rms_norm_heads(Activation::kValue, kNoWeight, spec.kv_heads, config_.norm_eps);
    backend_.store(number);
  }
  Backend::AttentionWeights weights{.sinks = layer.sinks};
  if (after) weights = {layer.sinks, {layer.query_norm, layer.key_norm}};
  backend_.attend(number, weights);
  if (spec.gated) backend_.activate(ActivationFunction::kSigmoid, Activation::kGate, Activation::kAttention);
  multiply(Activation::kAttention, layer.attention_output, Activation::kProjected);
}

void Transformer::projected_norms(int layer, int kv_head, std::span<const float> values,
                                  std::span<double> norms) const {
  const auto number = static_cast<std::size_t>(layer);
  const AttentionSpec& spec = config_.layers[number].attention;
  KVASIR_CHECK(spec.heads > 0 && !spec.latent);
  backend_.product_norms(weights_.layers[number].attention_output.matrix,
                         {kv_head * spec.group() * spec.head_dim, spec.group(), spec.head_dim}, values, norms);
}

// From kNormalized to kProjected.
void Transformer::mix(int number, const LayerWeights& layer) const {
  std::vector<Backend::Product> inputs;
  for (std::size_t i = 0; i < layer.mixer_inputs.size(); ++i)
    inputs.push_back({layer.mixer_inputs[i].matrix, layer.mixer_inputs[i].bias, kMixerInputs[i]});
  backend_.multiply(Activation::kNormalized, inputs);
  backend_.mix(number, layer.mixer_parameters);
  multiply(Activation::kAttention, layer.attention_output, Activation::kProjected);
}

// From kNormalized to kProjected.
void Transformer::feed_forward(const FeedForwardSpec& spec, const LayerWeights& layer) const {
  if (spec.gated) {
    const Backend::Product both[] = {{layer.gate.matrix, layer.gate.bias, Activation::kGate},
                                     {layer.up.matrix, layer.up.bias, Activation::kUp}};
    backend_.multiply(Activation::kNormalized, both);
    backend_.activate(spec.function, Activation::kGate, Activation::kUp);
  } else {
    multiply(Activation::kNormalized, layer.up, Activation::kUp);
    backend_.activate(spec.function, Activation::kUp);
  }
  multiply(Activation::kUp, layer.down, Activation::kProjected);
}

// From kNormalized to kProjected: what the experts give, and where there is one, the network that all rows share.
void Transformer::mix_experts(const LayerSpec& spec, const LayerWeights& layer) const {
  const ExpertsSpec& experts = *spec.experts;
  if (experts.shared_hidden > 0) {
    FeedForwardSpec shared = spec.feed_forward;
    shared.hidden = experts.shared_hidden;
    feed_forward(shared, layer);
    if (layer.shared_gate != kNoWeight)
      backend_.scale_rows(Activation::kProjected, Activation::kNormalized, layer.shared_gate);
  }
  multiply(Activation::kNormalized, layer.router, Activation::kRouter);
  run_experts(spec, layer, experts.shared_hidden > 0);
}

// From kNormalized and kRouter to kProjected.
void Transformer::run_experts(const LayerSpec& spec, const LayerWeights& layer, bool adds) const {
  const ExpertsSpec& experts = *spec.experts;
  backend_.run_experts({.choice = {experts.scores, experts.used, experts.normalized, experts.scale},
                        .count = experts.count,
                        .selection_bias = layer.selection_bias,
                        .scales = layer.expert_scales,
                        .function = spec.feed_forward.function,
                        .gate = {layer.expert_gate.matrix, layer.expert_gate.bias},
                        .up = {layer.expert_up.matrix, layer.expert_up.bias},
                        .down = {layer.expert_down.matrix, layer.expert_down.bias},
                        .adds = adds});
}

// From kNormalized and kResidual to kProjected.
void Transformer::mix_experts_beside_network(const LayerSpec& spec, const LayerWeights& layer) const {
  feed_forward(spec.feed_forward, layer);
  normalize(Activation::kProjected, layer.network_norm_after, Activation::kBeside);
  backend_.rms_norm(Activation::kResidual, layer.router_norm, config_.norm_eps, Activation::kNormalized);
  backend_.scale(Activation::kNormalized, 1 / std::sqrt(static_cast<float>(config_.width)), kNoWeight);
  multiply(Activation::kNormalized, layer.router, Activation::kRouter);
  normalize(Activation::kResidual, layer.expert_norm, Activation::kNormalized);
  run_experts(spec, layer, false);
  normalize(Activation::kProjected, layer.expert_norm_after, Activation::kProjected);
  backend_.add(Activation::kProjected, Activation::kBeside);
}

// kResidual += kProjected, normalised before where the layer has norms after.
void Transformer::add(const LayerSpec& spec, const Norm& norm_after) const {
  if (spec.norms_after) normalize(Activation::kProjected, norm_after, Activation::kProjected);
  if (config_.residual_scale != 1) backend_.scale(Activation::kProjected, config_.residual_scale, kNoWeight);
  backend_.add(Activation::kResidual, Activation::kProjected);
}

// kResidual += norm(output(function(gate(kResidual)) * the layer's part of kPerLayer)); then scaled.
void Transformer::end_layer(int number, const LayerSpec& spec, const LayerWeights& layer) const {
  if (const int size = config_.per_layer_embedding; size > 0) {
    multiply(Activation::kResidual, layer.per_layer_gate, Activation::kGate);
    backend_.copy(Activation::kPerLayer, {number * size, size}, Activation::kUp);
    backend_.activate(spec.feed_forward.function, Activation::kGate, Activation::kUp);
    multiply(Activation::kUp, layer.per_layer_output, Activation::kProjected);
    normalize(Activation::kProjected, layer.per_layer_norm, Activation::kProjected);
    backend_.add(Activation::kResidual, Activation::kProjected);
  }
  if (spec.scaled) backend_.scale(Activation::kResidual, 1, layer.scale);
}

Backend::Outputs Transformer::forward(const Backend::Pass& pass) const {
  backend_.begin(pass);
  embed();
  for (int l = 0; l < config_.layer_count(); ++l) {
    const LayerSpec& spec = config_.layers[static_cast<std::size_t>(l)];
    const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(l)];
    normalize(Activation::kResidual, layer.attention_norm, Activation::kNormalized);
    if (spec.state) {
      mix(l, layer);
    } else if (spec.attention.latent) {
      attend_latent(l, spec.attention, layer);
    } else {
      attend(l, spec.attention, layer);
    }
    // The feed-forward network reads the attention's result, or beside it what the attention read.
    if (spec.parallel && !spec.shared_norm) normalize(Activation::kResidual, layer.ffn_norm, Activation::kNormalized);
    add(spec, layer.attention_norm_after);
    if (!spec.parallel) normalize(Activation::kResidual, layer.ffn_norm, Activation::kNormalized);
    if (!spec.experts) {
      feed_forward(spec.feed_forward, layer);
    } else if (spec.experts->beside_network) {
      mix_experts_beside_network(spec, layer);
    } else {
      mix_experts(spec, layer);
    }
    add(spec, layer.ffn_norm_after);
    end_layer(l, spec, layer);
  }
  return backend_.outputs({.matrix = weights_.output,
                           .norm = weights_.output_norm.weight,
                           .norm_bias = weights_.output_norm.bias,
                           .layer_norm = config_.norm != NormKind::kRms,
                           .eps = config_.norm_eps,
                           .scale = config_.logit_scale,
                           .softcap = config_.logit_softcap});
}

}  // namespace kvasir
