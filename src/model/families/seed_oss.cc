#include "model/family.h"

namespace kvasir {

const Family& seed_oss_family() {
  static constexpr Family kFamily{
      .name = "seed_oss",
      .covers = "Seed-OSS 36B",
      .tensors = {.pairs = RotaryPairs::kHalves, .qkv_bias = Presence::kOptional, .ffn_norm = "post_attention_norm"},
  };
  return kFamily;
}

}  // namespace kvasir
