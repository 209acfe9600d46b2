// ERNIE 4.5 with experts (Baidu 2025): a softmax chooses, with a bias; shared experts beside them; the first layers are
// dense.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_ernie4_5_moe(Keys& keys, ModelConfig* model) {
  KVASIR_ASSIGN_OR_RETURN(const int step, keys.positive_or("interleave_moe_layer_step", 4096, 1));
  if (step != 1)
    return unsupported("{} = {}: experts on some layers only are not supported", keys.name("interleave_moe_layer_step"),
                       step);
  return read_experts(keys, model, {.normalized = true});
}

}  // namespace

const Family& ernie4_5_moe_family() {
  static constexpr Family kFamily{
      .name = "ernie4_5-moe",
      .covers = "ERNIE-4.5-21B-A3B",
      .tensors = {.qkv_bias = Presence::kOptional, .other_biases = Presence::kOptional},
      .adjust = adjust_ernie4_5_moe,
  };
  return kFamily;
}

}  // namespace kvasir
