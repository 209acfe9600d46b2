// StarCoder2 (arXiv 2402.19173): LayerNorm, GELU without a gate, and biases.
#include "model/family.h"

namespace kvasir {

// A window in the file of the 3B and 7B models is the context's length or a quarter of it.
const Family& starcoder2_family() {
  static constexpr Family kFamily{
      .name = "starcoder2",
      .covers = "StarCoder2",
      .norm = NormKind::kLayer,
      .feed_forward = {.function = ActivationFunction::kGeluTanh, .gated = false},
      .tensors = {.pairs = RotaryPairs::kHalves, .qkv_bias = Presence::kOptional, .other_biases = Presence::kOptional},
      .adjust = read_window,
  };
  return kFamily;
}

}  // namespace kvasir
