#include "model/transformer.h"

namespace kvasir {

BackendShape backend_shape(const ModelConfig& config) {
  BackendShape shape;
  shape.width = config.width;
  shape.vocabulary = config.vocabulary;
  for (const RotaryEmbedding& rotary : config.rotary)
    shape.rotations.push_back({rotary.dims, rotary.inverse_frequencies, rotary.magnitude});
  for (const LayerSpec& layer : config.layers) {
    if (layer.state) {
      shape.layers.push_back({.hidden = layer.feed_forward.hidden, .mixer = layer.state->mixer});
      continue;
    }
    const AttentionSpec& attention = layer.attention;
    shape.layers.push_back({.heads = attention.heads,
                            .kv_heads = attention.kv_heads,
                            .head_dim = attention.head_dim,
                            .hidden = layer.feed_forward.hidden,
                            .windowed = attention.window > 0,
                            .rotation = attention.rotary,
                            .scale = attention.scale});
  }
  return shape;
}

void Transformer::normalize(Activation from, const Norm& norm, Activation to) const {
  if (config_.norm == NormKind::kRms) {
    backend_.rms_norm(from, norm.weight, config_.norm_eps, to);
  } else {
    backend_.layer_norm(from, norm.weight, norm.bias, config_.norm_eps, to);
  }
}

// From kNormalized to kProjected.
void Transformer::attend(int number, const AttentionSpec& spec, const LayerWeights& layer) const {
  const Backend::Product products[] = {{layer.query.matrix, layer.query.bias, Activation::kQuery},
                                       {layer.key.matrix, layer.key.bias, Activation::kKey},
                                       {layer.value.matrix, layer.value.bias, Activation::kValue}};
  backend_.multiply(Activation::kNormalized, products);
  if (layer.query_norm != kNoWeight)
    backend_.rms_norm_heads(Activation::kQuery, layer.query_norm, spec.heads, config_.norm_eps);
  if (layer.key_norm != kNoWeight)
    backend_.rms_norm_heads(Activation::kKey, layer.key_norm, spec.kv_heads, config_.norm_eps);
  backend_.store(number);
  backend_.attend(number);
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

// kResidual += kProjected, normalised before where the layer has norms after.
void Transformer::add(const LayerSpec& spec, const Norm& norm_after) const {
  if (spec.norms_after) normalize(Activation::kProjected, norm_after, Activation::kProjected);
  backend_.add(Activation::kResidual, Activation::kProjected);
}

Backend::Outputs Transformer::forward(const Backend::Pass& pass) const {
  backend_.begin(pass);
  backend_.embed(weights_.embedding, config_.embedding_scale);
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
    if (spec.parallel) normalize(Activation::kResidual, layer.ffn_norm, Activation::kNormalized);
    add(spec, layer.attention_norm_after);
    if (!spec.parallel) normalize(Activation::kResidual, layer.ffn_norm, Activation::kNormalized);
    feed_forward(spec.feed_forward, layer);
    add(spec, layer.ffn_norm_after);
  }
  return backend_.outputs(weights_.output, weights_.output_norm.weight, weights_.output_norm.bias, config_.norm_eps);
}

}  // namespace kvasir
