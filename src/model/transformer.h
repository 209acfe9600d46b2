// The op graph of a transformer: one forward pass over a batch, written once over the operations of a backend.
//
// Contract: a row's logits are bit-identical whatever other rows run with it.
// Thread-safety: const; one caller at a time, as the backend.
#pragma once

#include <span>

#include "backend/backend.h"
#include "model/config.h"
#include "model/weights.h"

namespace kvasir {

// Returns the properties of a model that backend operations depend on.
BackendShape backend_shape(const ModelConfig& config);

class Transformer {
 public:
  // All arguments outlive the object. REQUIRES: the backend has loaded the weights before forward is called.
  Transformer(const ModelConfig* config, const Weights* weights, Backend* backend)
      : config_(*config), weights_(*weights), backend_(*backend) {}

  // Writes the batch's keys and values into their pages and computes the requested logits and hidden states, valid
  // until the next call. REQUIRES: token ids within the vocabulary.
  Backend::Outputs forward(const Backend::Pass& pass) const;

  // norms[i] = mean over the query heads of a KV head of ||Wo v||_1, with Wo the head's columns of the layer's output
  // projection and v = values[i] ([norms.size()][head_dim]) (CriticalKV, arXiv 2502.03805, algorithm 1). Gates, norms
  // behind the projection and adapters do not count. Allocates at most Backend::norm_bytes. REQUIRES: the layer has
  // attention, and it is not latent.
  void projected_norms(int layer, int kv_head, std::span<const float> values, std::span<double> norms) const;

 private:
  void embed() const;
  void multiply(Activation from, const Linear& by, Activation to) const;
  void normalize(Activation from, const Norm& norm, Activation to) const;
  void attend(int number, const AttentionSpec& spec, const LayerWeights& layer) const;
  void attend_latent(int number, const AttentionSpec& spec, const LayerWeights& layer) const;
  void mix(int number, const LayerWeights& layer) const;
  void feed_forward(const FeedForwardSpec& spec, const LayerWeights& layer) const;
  void mix_experts(const LayerSpec& spec, const LayerWeights& layer) const;
  void run_experts(const LayerSpec& spec, const LayerWeights& layer, bool adds) const;
  void mix_experts_beside_network(const LayerSpec& spec, const LayerWeights& layer) const;
  void end_layer(int number, const LayerSpec& spec, const LayerWeights& layer) const;
  void add(const LayerSpec& spec, const Norm& norm_after) const;

  const ModelConfig& config_;
  const Weights& weights_;
  Backend& backend_;
};

}  // namespace kvasir
