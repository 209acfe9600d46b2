#include "model/transformer.h"

namespace kvasir {

BackendShape backend_shape(const ModelConfig& config) {
  BackendShape shape;
  shape.layers = config.layers;
  shape.width = config.width;
  shape.heads = config.heads;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.ffn = config.ffn;
  shape.vocabulary = config.vocabulary;
  shape.windowed = config.sliding_window > 0;
  shape.rotary = config.rope.dims;
  shape.inverse_frequencies = config.rope.inverse_frequencies;
  shape.rotary_magnitude = config.rope.magnitude;
  return shape;
}

// From `from` to kNormalized.
void Transformer::normalize(Activation from, const Norm& norm) const {
  if (config_.architecture->norm == NormKind::kRms) {
    backend_.rms_norm(from, norm.weight, config_.norm_eps, Activation::kNormalized);
  } else {
    backend_.layer_norm(from, norm.weight, norm.bias, config_.norm_eps, Activation::kNormalized);
  }
}

void Transformer::project_attention(const LayerWeights& layer) const {
  const Backend::Product products[] = {{layer.query.matrix, layer.query.bias, Activation::kQuery},
                                       {layer.key.matrix, layer.key.bias, Activation::kKey},
                                       {layer.value.matrix, layer.value.bias, Activation::kValue}};
  backend_.multiply(Activation::kNormalized, products);
  if (layer.query_norm != kNoWeight)
    backend_.rms_norm_heads(Activation::kQuery, layer.query_norm, config_.heads, config_.norm_eps);
  if (layer.key_norm != kNoWeight)
    backend_.rms_norm_heads(Activation::kKey, layer.key_norm, config_.kv_heads, config_.norm_eps);
}

// From kNormalized to kProjected.
void Transformer::feed_forward(const LayerWeights& layer) const {
  const Backend::Product up{layer.up.matrix, layer.up.bias, Activation::kUp};
  const FeedForward& kind = config_.architecture->feed_forward;
  if (kind.gated) {
    const Backend::Product both[] = {{layer.gate.matrix, layer.gate.bias, Activation::kGate}, up};
    backend_.multiply(Activation::kNormalized, both);
    backend_.activate(kind.function, Activation::kGate, Activation::kUp);
  } else {
    backend_.multiply(Activation::kNormalized, {&up, 1});
    backend_.activate(kind.function, Activation::kUp);
  }
  const Backend::Product down{layer.down.matrix, layer.down.bias, Activation::kProjected};
  backend_.multiply(Activation::kUp, {&down, 1});
}

std::span<const float> Transformer::forward(const Backend::Pass& pass) const {
  backend_.begin(pass);
  backend_.embed(weights_.embedding, config_.embedding_scale);
  for (int l = 0; l < config_.layers; ++l) {
    const LayerWeights& layer = weights_.layers[static_cast<std::size_t>(l)];
    normalize(Activation::kResidual, layer.attention_norm);
    project_attention(layer);
    backend_.store(l);
    backend_.attend(l);
    const Backend::Product output{layer.attention_output.matrix, layer.attention_output.bias, Activation::kProjected};
    backend_.multiply(Activation::kAttention, {&output, 1});
    // The feed-forward network reads the attention's result, or beside it what the attention read.
    if (config_.parallel_residual) normalize(Activation::kResidual, layer.ffn_norm);
    backend_.add(Activation::kResidual, Activation::kProjected);
    if (!config_.parallel_residual) normalize(Activation::kResidual, layer.ffn_norm);
    feed_forward(layer);
    backend_.add(Activation::kResidual, Activation::kProjected);
  }
  return backend_.logits(weights_.output, weights_.output_norm.weight, weights_.output_norm.bias, config_.norm_eps);
}

}  // namespace kvasir
