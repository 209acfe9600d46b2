// Qwen 3 with experts (arXiv 2505.09388): Qwen 3's layers; the weights of the chosen experts are normalised.
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_qwen3moe(Keys& keys, ModelConfig* model) {
  return read_experts(keys, model, {.normalized = true});
}

}  // namespace

const Family& qwen3moe_family() {
  static constexpr Family kFamily{
      .name = "qwen3moe",
      .covers = "Qwen3-30B-A3B, Qwen3-Coder-30B-A3B, Qwen3-235B-A22B",
      .tensors = {.pairs = RotaryPairs::kHalves, .qkv_bias = Presence::kOptional, .qk_norm = Presence::kAlways},
      .adjust = adjust_qwen3moe,
  };
  return kFamily;
}

}  // namespace kvasir
