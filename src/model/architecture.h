// The model families as data: what distinguishes one GGUF architecture from another. A family made of the same parts is
// added as one row of a table.
// Thread-safety: constants.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "backend/activation_function.h"

namespace kvasir {

enum class NormKind {
  kRms,    // RMSNorm; key attention.layer_norm_rms_epsilon
  kLayer,  // LayerNorm with biases; key attention.layer_norm_epsilon
};

// down(function(gate(x)) * up(x)) (Shazeer 2020), or without a gate down(function(up(x))).
struct FeedForward {
  ActivationFunction function = ActivationFunction::kSilu;
  bool gated = true;
};

// Which dimensions of a head are rotated together.
enum class RotaryPairs {
  kAdjacent,  // 2i and 2i + 1 (the layout of GGUF files of llama models)
  kHalves,    // i and i + rotary / 2 (GPT-NeoX)
};

enum class Presence { kNever, kOptional, kAlways };

struct Architecture {
  std::string_view name;    // general.architecture, and the prefix of its keys
  std::string_view covers;  // well-known models
  NormKind norm = NormKind::kRms;
  FeedForward feed_forward;
  RotaryPairs pairs = RotaryPairs::kAdjacent;
  bool fused_qkv = false;  // attn_qkv: the rows of queries, keys, values
  Presence qkv_bias = Presence::kNever;
  Presence other_biases = Presence::kNever;  // of attention output and feed-forward
  Presence qk_norm = Presence::kNever;       // RMSNorm of each head of queries and keys, before the rotation
  bool parallel_residual = false;            // has the key use_parallel_residual (absent: true)
  // Applies attention.sliding_window to all layers. Qwen's published configurations carry the key but switch it off.
  bool sliding_window = false;
};

std::span<const Architecture> architectures();
const Architecture* find_architecture(std::string_view name);  // nullptr: not supported
std::string architecture_names();                              // "llama, qwen2, ...", for messages

}  // namespace kvasir
