// What one layer of a model computes, as plain data. Families fill it from a GGUF's keys (model/family.h); the op graph
// interprets it (model/transformer.h).
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/activation_function.h"
#include "backend/expert_choice.h"
#include "backend/state_mixer.h"

namespace kvasir {

enum class NormKind {
  kRms,            // RMSNorm; key attention.layer_norm_rms_epsilon
  kLayer,          // LayerNorm with biases; key attention.layer_norm_epsilon
  kUnbiasedLayer,  // LayerNorm without biases; the same key
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), in its absorbed form: a token has one key
// for all heads, its rotated part behind the latent vector, which is also its value. A head's query and what its
// attention gives pass through matrices of its own (attn_k_b, attn_v_b).
struct LatentSpec {
  int query_rank = 0;  // of the product attn_q_b * norm(attn_q_a * x); 0: queries are attn_q * x
  int rank = 0;        // of the latent vector
  int plain = 0;       // dimensions of a head's query that do not rotate
  int value = 0;       // dimensions that a head gives
};

struct AttentionSpec {
  int heads = 0;     // query heads
  int kv_heads = 0;  // divides heads
  int head_dim = 0;
  std::int64_t window = 0;           // a token sees tokens less than this many positions before it; 0: all
  int rotary = 0;                    // index in ModelConfig::rotary
  std::optional<LatentSpec> latent;  // then kv_heads is 1 and head_dim is rank + rotated dimensions
  // An earlier layer, whose keys and values this layer reads in place of its own: it has no projections of keys and
  // values, and no cache (Brandon et al., arXiv 2405.12981). -1: none.
  int keys_of = -1;
  bool values_from_keys = false;  // values are the projection of keys, before their norm and rotation
  bool value_norm = false;        // RMSNorm of each head's values, without a weight
  float scale = 0;                // of queries; 0: 1 / sqrt(head_dim)
  float softcap = 0;              // scores become softcap * tanh(score / softcap); 0: they stay
  // A number for each query head, which its softmax counts as one more score, of a token without a value: tensor
  // attn_sinks.weight (gpt-oss, arXiv 2508.10925, section 2.2).
  bool sinks = false;
  // What a head gives is multiplied by sigmoid(gate(x)); attn_q has the gate's rows behind the head's queries.
  bool gated = false;
  // Queries are multiplied by 1 + temperature * ln(1 + floor(position / temperature_span)) (Llama 4; Nakanishi, arXiv
  // 2501.19399).
  float temperature = 0;
  std::int64_t temperature_span = 0;  // at least 1 with a temperature

  int group() const { return heads / kv_heads; }
  // Whether one page table can serve both, and a policy may decide alike for both.
  bool shares_tables_with(const AttentionSpec& other) const {
    return heads == other.heads && kv_heads == other.kv_heads && head_dim == other.head_dim && window == other.window;
  }
};

// A recurrence in place of attention: output(mixer(inputs(x))). Its tensors are blk.N.<name>.
struct StateSpec {
  struct Parameter {
    std::string name;                 // with its suffix: "shortconv.conv.weight"
    std::vector<std::uint64_t> dims;  // as the file has them; all are read as floats, in the order of the file
  };
  std::shared_ptr<const StateMixer> mixer;  // never null
  std::vector<std::string> inputs;          // matrices [mixer->inputs()[i], width], without ".weight"
  std::string output;                       // matrix [width, mixer->output()], without ".weight"
  std::vector<Parameter> parameters;        // that the mixer itself reads
};

// down(function(gate(x)) * up(x)) (Shazeer 2020), or without a gate down(function(up(x))).
struct FeedForwardSpec {
  ActivationFunction function = ActivationFunction::kSilu;
  bool gated = true;
  int hidden = 0;  // outputs of gate and up
};

// A mixture of experts (Shazeer et al. 2017): each row runs the `used` feed-forward networks that the router scores
// highest, and adds their outputs, weighted. The router is the matrix ffn_gate_inp; the experts' matrices are slices of
// the tensors ffn_gate_exps, ffn_up_exps and ffn_down_exps.
struct ExpertsSpec {
  int count = 0;
  int used = 0;              // of a row
  int hidden = 0;            // outputs of an expert's gate and up
  int shared_hidden = 0;     // of a network that all rows run beside the experts (ffn_*_shexp); 0: none
  bool shared_gate = false;  // its output is multiplied by sigmoid(ffn_gate_inp_shexp . x)
  ExpertScores scores = ExpertScores::kSoftmax;
  bool selection_bias = false;  // exp_probs_b is added to scores when experts are chosen, and not in their weights
  bool normalized = false;      // the weights of a row's experts are divided by their sum
  float scale = 1;              // of the weights
  bool biases = false;          // of the router and the experts
  bool output_scales = false;   // the output of each expert is multiplied by a number (ffn_down_exps.scale)
  // The network that all rows run is the layer's own (ffn_gate, ffn_up, ffn_down). It and the experts have norms of
  // their own before and after, and the router reads norm(x) * ffn_gate_inp.scale / sqrt(width) (Gemma 4).
  bool beside_network = false;
};

// x += attention(norm(x)); x += feed_forward(norm'(x)). With norms after, what is added is itself normalised first.
struct LayerSpec {
  AttentionSpec attention;         // of a layer without a state
  std::optional<StateSpec> state;  // in place of attention
  FeedForwardSpec feed_forward;
  std::optional<ExpertsSpec> experts;  // in place of the feed-forward network, with its function
  bool parallel = false;     // x += attention(norm(x)) + feed_forward(norm'(x)) instead of one after the other
  bool shared_norm = false;  // parallel, and norm' is norm
  bool norms_before = true;  // otherwise attention and the feed-forward network read x itself
  bool norms_after = false;  // of attention and of the feed-forward network, before they are added
  bool scaled = false;       // x is multiplied by the number layer_output_scale.weight at the end of the layer
};

}  // namespace kvasir
