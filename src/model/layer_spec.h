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
#include "backend/state_mixer.h"

namespace kvasir {

enum class NormKind {
  kRms,    // RMSNorm; key attention.layer_norm_rms_epsilon
  kLayer,  // LayerNorm with biases; key attention.layer_norm_epsilon
};

struct AttentionSpec {
  int heads = 0;     // query heads
  int kv_heads = 0;  // divides heads
  int head_dim = 0;
  std::int64_t window = 0;  // a token sees tokens less than this many positions before it; 0: all
  int rotary = 0;           // index in ModelConfig::rotary
  float scale = 0;          // of queries; 0: 1 / sqrt(head_dim)

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

// x += attention(norm(x)); x += feed_forward(norm'(x)). With norms after, what is added is itself normalised first.
struct LayerSpec {
  AttentionSpec attention;         // of a layer without a state
  std::optional<StateSpec> state;  // in place of attention
  FeedForwardSpec feed_forward;
  bool parallel = false;     // x += attention(norm(x)) + feed_forward(norm'(x)) instead of one after the other
  bool norms_after = false;  // of attention and of the feed-forward network, before they are added
};

}  // namespace kvasir
