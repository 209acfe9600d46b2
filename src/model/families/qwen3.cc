#include "model/family.h"

namespace kvasir {

const Family& qwen3_family() {
  static constexpr Family kFamily{
      .name = "qwen3",
      .covers = "Qwen3 (dense)",
      .tensors = {.pairs = RotaryPairs::kHalves, .qkv_bias = Presence::kOptional, .qk_norm = Presence::kAlways},
  };
  return kFamily;
}

}  // namespace kvasir
