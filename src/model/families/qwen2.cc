#include "model/family.h"

namespace kvasir {

// Qwen's published configurations carry attention.sliding_window but switch it off.
const Family& qwen2_family() {
  static constexpr Family kFamily{
      .name = "qwen2",
      .covers = "Qwen1.5, Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen",
      .tensors = {.pairs = RotaryPairs::kHalves, .qkv_bias = Presence::kAlways},
  };
  return kFamily;
}

}  // namespace kvasir
