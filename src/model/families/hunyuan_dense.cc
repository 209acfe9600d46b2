// Hunyuan dense (Tencent 2025): norms of each head of queries and keys, behind the rotation.
#include "model/family.h"

namespace kvasir {

const Family& hunyuan_dense_family() {
  static constexpr Family kFamily{
      .name = "hunyuan-dense",
      .covers = "Hunyuan 0.5B to 7B",
      .tensors = {.pairs = RotaryPairs::kHalves,
                  .qkv_bias = Presence::kOptional,
                  .qk_norm = Presence::kAlways,
                  .qk_norm_after_rotation = true},
  };
  return kFamily;
}

}  // namespace kvasir
