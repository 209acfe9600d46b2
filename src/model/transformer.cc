#include "model/transformer.h"

#include "model/family.h"

namespace kvasir {

BackendShape backend_shape(const ModelConfig& config) {
  BackendShape shape;
  shape.width = config.width;
  shape.vocabulary = config.vocabulary;
  for (const RotaryEmbedding& rotary : config.rotary)
    shape.rotations.push_back({rotary.dims, rotary.inverse_frequencies, rotary.magnitude});
  if (config.has_long_rotation())
    for (const RotaryEmbedding& rotary : config.rotary)
      shape.rotations.push_back({rotary.dims, rotary.long_inverse_frequencies, rotary.magnitude});
  for (const LayerSpec& layer : config.layers) {
    LayerShape::Experts experts;
    if (layer.experts) experts = {layer.experts->count, layer.experts->used, layer.experts->hidden};
    const int hidden = layer.experts ? layer.experts->shared_hidden : layer.feed_forward.hidden;
    if (layer.state) {
      shape.layers.push_back({.hidden = hidden, .experts = experts, .mixer = layer.state->mixer});
      continue;
    }
    const AttentionSpec& attention = layer.attention;
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
                            .experts = experts});
  }
  return shape;
}

void Transformer::normalize(Activation from, const Norm& norm, Activation to) const {
  if (norm.weight == kNoWeight) {
    backend_.copy(from, to);
  } else if (config_.norm == NormKind::kRms) {
    backend_.rms_norm(from, norm.weight, config_.norm_eps, to);
  } else {
    backend_.layer_norm(from, norm.weight, norm.bias, config_.norm_eps, to);
  }
}

// From kNormalized to kProjected.
void Transformer::attend(int number, const AttentionSpec& spec, const LayerWeights& layer) const {
  const Backend::Product products[] = {{layer.query.matrix, layer.query.bias, Activation::kQuery},
                                       {layer.key.matrix, layer.key.bias, Activation::kKey},
                                       {layer.value.matrix, layer.value.bias, Activation::kValue},
                                       {layer.attention_gate.matrix, layer.attention_gate.bias, Activation::kGate}};
  backend_.multiply(Activation::kNormalized, std::span(products).first(spec.gated ? 4 : 3));
  const bool of_row = config_.family->tensors.qk_norm_of_row;
  // A rotation keeps norms. So behind it only the weights are left to multiply by, those of keys at the query.
  const bool after = config_.family->tensors.qk_norm_after_rotation;
  if (layer.query_norm != kNoWeight)
    backend_.rms_norm_heads(Activation::kQuery, after ? kNoWeight : layer.query_norm, of_row ? 1 : spec.heads,
                            config_.norm_eps);
  if (layer.key_norm != kNoWeight)
    backend_.rms_norm_heads(Activation::kKey, after ? kNoWeight : layer.key_norm, of_row ? 1 : spec.kv_heads,
                            config_.norm_eps);
  backend_.store(number);
  Backend::AttentionWeights weights{.sinks = layer.sinks};
  if (after) weights = {layer.sinks, {layer.query_norm, layer.key_norm}};
  backend_.attend(number, weights);
  if (spec.gated) backend_.activate(ActivationFunction::kSigmoid, Activation::kGate, Activation::kAttention);
  const Backend::Product output{layer.attention_output.matrix, layer.attention_output.bias, Activation::kProjected};
  backend_.multiply(Activation::kAttention, {&output, 1});
}

// From kNormalized to kProjected.
void Transformer::mix(int number, const LayerWeights& layer) const {
  std::vector<Backend::Product> inputs;
  for (std::size_t i = 0; i < layer.mixer_inputs.size(); ++i)
    inputs.push_back({layer.mixer_inputs[i].matrix, layer.mixer_inputs[i].bias, kMixerInputs[i]});
  backend_.multiply(Activation::kNormalized, inputs);
  backend_.mix(number, layer.mixer_parameters);
  const Backend::Product output{layer.attention_output.matrix, layer.attention_output.bias, Activation::kProjected};
  backend_.multiply(Activation::kAttention, {&output, 1});
}

// From kNormalized to kProjected.
void Transformer::feed_forward(const FeedForwardSpec& spec, const LayerWeights& layer) const {
  const Backend::Product up{layer.up.matrix, layer.up.bias, Activation::kUp};
  if (spec.gated) {
    const Backend::Product both[] = {{layer.gate.matrix, layer.gate.bias, Activation::kGate}, up};
    backend_.multiply(Activation::kNormalized, both);
    backend_.activate(spec.function, Activation::kGate, Activation::kUp);
  } else {
    backend_.multiply(Activation::kNormalized, {&up, 1});
    backend_.activate(spec.function, Activation::kUp);
  }
  const Backend::Product down{layer.down.matrix, layer.down.bias, Activation::kProjected};
  backend_.multiply(Activation::kUp, {&down, 1});
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
  const Backend::Product router{layer.router.matrix, layer.router.bias, Activation::kRouter};
  backend_.multiply(Activation::kNormalized, {&router, 1});
  backend_.run_experts({.choice = {experts.scores, experts.used, experts.normalized, experts.scale},
                        .count = experts.count,
                        .selection_bias = layer.selection_bias,
                        .function = spec.feed_forward.function,
                        .gate = {layer.expert_gate.matrix, layer.expert_gate.bias},
                        .up = {layer.expert_up.matrix, layer.expert_up.bias},
                        .down = {layer.expert_down.matrix, layer.expert_down.bias},
                        .adds = experts.shared_hidden > 0});
}

// kResidual += kProjected, normalised before where the layer has norms after.
void Transformer::add(const LayerSpec& spec, const Norm& norm_after) const {
  if (spec.norms_after) normalize(Activation::kProjected, norm_after, Activation::kProjected);
  if (config_.residual_scale != 1) backend_.scale(Activation::kProjected, config_.residual_scale);
  backend_.add(Activation::kResidual, Activation::kProjected);
}

Backend::Outputs Transformer::forward(const Backend::Pass& pass) const {
  backend_.begin(pass);
  backend_.embed(weights_.embedding, config_.embedding_scale, weights_.positions);
  for (int l = 0; l < config_.layer_count(); ++l) {
    const LayerSpec& spec = config_.layers[static_cast<std::size_t>(l)];
    const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(l)];
    normalize(Activation::kResidual, layer.attention_norm, Activation::kNormalized);
    if (spec.state) {
      mix(l, layer);
    } else {
      attend(l, spec.attention, layer);
    }
    // The feed-forward network reads the attention's result, or beside it what the attention read.
    if (spec.parallel && !spec.shared_norm) normalize(Activation::kResidual, layer.ffn_norm, Activation::kNormalized);
    add(spec, layer.attention_norm_after);
    if (!spec.parallel) normalize(Activation::kResidual, layer.ffn_norm, Activation::kNormalized);
    if (spec.experts) {
      mix_experts(spec, layer);
    } else {
      feed_forward(spec.feed_forward, layer);
    }
    add(spec, layer.ffn_norm_after);
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
