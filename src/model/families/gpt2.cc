// GPT-2 (Radford et al. 2019): learned positions, LayerNorm, GELU without a gate, biases.
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_gpt2(Keys& keys, ModelConfig* model) {
  static_cast<void>(keys);
  model->learned_positions = true;
  model->rotary.front() = {};
  return {};
}

}  // namespace

const Family& gpt2_family() {
  static constexpr Family kFamily{
      .name = "gpt2",
      .covers = "GPT-2",
      .norm = NormKind::kLayer,
      .feed_forward = {.function = ActivationFunction::kGeluTanh, .gated = false},
      .tensors = {.fused_qkv = Presence::kAlways, .qkv_bias = Presence::kAlways, .other_biases = Presence::kAlways},
      .adjust = adjust_gpt2,
  };
  return kFamily;
}

}  // namespace kvasir
