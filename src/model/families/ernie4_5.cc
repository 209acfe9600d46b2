#include "model/family.h"

namespace kvasir {

const Family& ernie4_5_family() {
  static constexpr Family kFamily{
      .name = "ernie4_5",
      .covers = "ERNIE 4.5 (dense)",
      .tensors = {.qkv_bias = Presence::kOptional, .other_biases = Presence::kOptional},
  };
  return kFamily;
}

}  // namespace kvasir
