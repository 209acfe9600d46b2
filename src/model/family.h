// The model families: what distinguishes one GGUF architecture from another. Each is one file in families/, which the
// build finds by itself: a family that is made of known parts touches nothing else.
// Thread-safety: constants.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "model/config.h"
#include "model/keys.h"

namespace kvasir {

// Which dimensions of a head are rotated together.
enum class RotaryPairs {
  kAdjacent,  // 2i and 2i + 1 (the layout of GGUF files of llama models)
  kHalves,    // i and i + rotary / 2 (GPT-NeoX)
};

enum class Presence { kNever, kOptional, kAlways };

// Which tensors a layer has, blk.N.*, and how their rows lie. Sizes are those of the layer's specification.
struct TensorLayout {
  RotaryPairs pairs = RotaryPairs::kAdjacent;
  Presence fused_qkv = Presence::kNever;  // attn_qkv: the rows of queries, keys, values; else attn_q, attn_k, attn_v
  bool fused_gate_up = false;             // ffn_up: the rows of gate, then of up; otherwise ffn_gate, ffn_up
  Presence qkv_bias = Presence::kNever;
  Presence other_biases = Presence::kNever;  // of attention output and feed-forward
  Presence qk_norm = Presence::kNever;       // RMSNorm of queries and keys, before the rotation
  bool qk_norm_of_row = false;               // of all heads together, not of each
  bool qk_norm_after_rotation = false;       // rather than before it
  // Names of the norms before the feed-forward network and before the output.
  std::string_view ffn_norm = "ffn_norm";
  std::string_view output_norm = "output_norm";
};

struct Family {
  std::string_view name;    // general.architecture, and the prefix of its keys
  std::string_view covers;  // well-known models
  NormKind norm = NormKind::kRms;
  FeedForwardSpec feed_forward;  // its sizes are read from the file
  TensorLayout tensors;
  YarnRules yarn;
  bool latent = false;         // latent attention: keys and values of a page may differ from those of a head
  bool long_rotation = false;  // files may have LongRoPE's two sets of angles
  // Changes a model whose layers are all alike, with the sizes, heads and rotation that the usual keys say, into what
  // the file describes. Null: nothing else is to be read.
  Status (*adjust)(Keys& keys, ModelConfig* model) = nullptr;
};

std::span<const Family* const> families();  // all, by name; the build writes the list (model/config.h)
std::string family_names();                 // "gemma3, gptneox, ...", for messages

// For families: gives all layers the window of attention.sliding_window, if the file has it.
Status read_window(Keys& keys, ModelConfig* model);
// For families: which layers have the window of attention.sliding_window; the others see everything. The file lists
// them in attention.sliding_window_pattern, or names there a pattern, of which the last layer sees everything.
// `pattern`: where the file says nothing.
Result<std::vector<bool>> read_windowed_layers(Keys& keys, const ModelConfig& model, int pattern);
// For families: gives these layers the window, which the file must have, and leaves the others without rotation.
Status read_rotating_windows(Keys& keys, ModelConfig* model, int pattern);
// For families: all layers have norms behind attention and the feed-forward network, and none before them.
void give_norms_only_after(ModelConfig* model);
// For families: gives all layers but the first leading_dense_block_count experts: `usual`, and what the file says of
// their sizes, scores and weights, of shared experts, and of a bias for their selection. expert_count must be there.
Status read_experts(Keys& keys, ModelConfig* model, const ExpertsSpec& usual = {});
// For families whose files may have no experts: as above, unless expert_count is absent or 0.
Status read_experts_if_any(Keys& keys, ModelConfig* model, const ExpertsSpec& usual);
// For families: adds the rotation of layers with a window behind those that the model has: `dims` dimensions of a head,
// with the base rope.freq_base_swa, 10,000 where the file does not say.
Status add_window_rotation(Keys& keys, int dims, ModelConfig* model);
// For families: the factors that some files have in embedding_scale, residual_scale, logit_scale, attention.scale and
// the limits attn_logit_softcapping and final_logit_softcapping.
Status read_scales(Keys& keys, ModelConfig* model);

}  // namespace kvasir
