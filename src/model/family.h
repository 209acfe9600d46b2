// The model families: what distinguishes one GGUF architecture from another. Each is one file in families/, which the
// build finds by itself: a family that is made of known parts touches nothing else.
// Thread-safety: constants.
#pragma once

#include <span>
#include <string>
#include <string_view>

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
  bool fused_qkv = false;  // attn_qkv: the rows of queries, keys, values; otherwise attn_q, attn_k, attn_v
  Presence qkv_bias = Presence::kNever;
  Presence other_biases = Presence::kNever;  // of attention output and feed-forward
  Presence qk_norm = Presence::kNever;       // RMSNorm of each head of queries and keys, before the rotation
};

struct Family {
  std::string_view name;    // general.architecture, and the prefix of its keys
  std::string_view covers;  // well-known models
  NormKind norm = NormKind::kRms;
  FeedForwardSpec feed_forward;  // its sizes are read from the file
  TensorLayout tensors;
  // Changes a model whose layers are all alike, with the sizes, heads and rotation that the usual keys say, into what
  // the file describes. Null: nothing else is to be read.
  Status (*adjust)(Keys& keys, ModelConfig* model) = nullptr;
};

std::span<const Family* const> families();  // all, by name; the build writes the list (model/config.h)
std::string family_names();                 // "gemma3, gptneox, ...", for messages

// For families: gives all layers the window of attention.sliding_window, if the file has it.
Status read_window(Keys& keys, ModelConfig* model);

}  // namespace kvasir
