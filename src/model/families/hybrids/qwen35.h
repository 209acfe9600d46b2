// What Qwen 3.5 and Qwen 3.5 with experts have in common.
#pragma once

#include "model/family.h"

namespace kvasir {

inline constexpr TensorLayout kQwen35Tensors{
    .pairs = RotaryPairs::kHalves, .qk_norm = Presence::kAlways, .ffn_norm = "post_attention_norm"};

// Gives most layers a Gated DeltaNet, and the attention of the others a gate.
Status read_delta_nets(Keys& keys, ModelConfig* model);

}  // namespace kvasir
