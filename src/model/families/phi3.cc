// Phi-3, Phi-3.5 and Phi-4 (Microsoft 2024): fused queries, keys and values, fused gate and up; in models with a long
// context LongRoPE, and in the first ones a window.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

// A window as long as the trained context hides nothing.
Status adjust_phi3(Keys& keys, ModelConfig* model) {
  KVASIR_RETURN_IF_ERROR(read_window(keys, model));
  for (LayerSpec& layer : model->layers)
    if (layer.attention.window >= model->context) layer.attention.window = 0;
  return {};
}

}  // namespace

const Family& phi3_family() {
  static constexpr Family kFamily{
      .name = "phi3",
      .covers = "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
      .tensors = {.pairs = RotaryPairs::kHalves, .fused_qkv = Presence::kOptional, .fused_gate_up = true},
      .long_rotation = true,
      .adjust = adjust_phi3,
  };
  return kFamily;
}

}  // namespace kvasir
