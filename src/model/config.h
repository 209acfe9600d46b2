// The hyper-parameters of a model, read and checked from a GGUF header.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/reader.h"
#include "kvasir/pooling.h"
#include "kvasir/status.h"
#include "model/layer_spec.h"
#include "model/rope.h"

namespace kvasir {

struct Family;

struct ModelConfig {
  const Family* family = nullptr;
  std::string name;                  // general.name; may be empty
  int width = 0;                     // d, the length of the residual stream
  Pooling pooling = Pooling::kNone;  // of embeddings; kNone: the file names none that is supported
  int vocabulary = 0;
  std::int64_t context = 0;  // trained context, tokens
  NormKind norm = NormKind::kRms;
  float norm_eps = 0;
  float embedding_scale = 1;       // of embeddings of tokens
  bool learned_positions = false;  // tensor position_embd: [context] rows, added to embeddings of tokens
  // Tokens have a second embedding (per_layer_token_embd), of this many numbers for each layer. The scaled sum of it
  // and a projection of the first multiplies what the layer adds at its end (Gemma 3n). 0: none.
  int per_layer_embedding = 0;
  float residual_scale = 1;             // of what layers add
  float logit_scale = 1;                // of logits
  float logit_softcap = 0;              // logits become softcap * tanh(logit / softcap); 0: they stay
  std::vector<RotaryEmbedding> rotary;  // that layers use
  std::vector<LayerSpec> layers;        // at least one
  int further_layers = 0;               // in the file behind them, which guess further tokens; they are not run

  std::string_view architecture() const;  // general.architecture
  // Whether sequences rotate by one of two sets of angles, depending on the length that they may reach (LongRoPE).
  bool has_long_rotation() const;
  // The most tokens that a sequence with these angles is trained for.
  std::int64_t context_of(bool long_rotation) const;
  int layer_count() const { return static_cast<int>(layers.size()); }
  // Whether a retention policy decides what the layer keeps: it has attention, and sees all tokens, or no layer of the
  // model does. The other layers keep their windows and states, whatever the policy.
  bool is_governed(const LayerSpec& layer) const;
  // Number of those layers, and what they have in common.
  int governed_layers() const;
  const AttentionSpec& governed() const;
  int first_governed_layer() const;
};

std::span<const Family* const> families();  // all that are built in, by name (model/family.h)

// `known`: the families that the file may be of. Errors: kUnsupported for unknown architectures (lists those built in)
// and for unsupported features (named); kDataLoss for values that contradict each other or the tensors.
Result<ModelConfig> read_model_config(const gguf::File& file, std::span<const Family* const> known = families());

}  // namespace kvasir
