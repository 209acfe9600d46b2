// GLM-4 0414 (Zhipu AI 2025): norms before and after, fused gate and up, biases of queries, keys and values, and half
// of a head rotated.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_glm4(Keys& keys, ModelConfig* model) {
  static_cast<void>(keys);
  for (LayerSpec& layer : model->layers) layer.norms_after = true;
  return {};
}

}  // namespace

const Family& glm4_family() {
  static constexpr Family kFamily{
      .name = "glm4",
      .covers = "GLM-4 0414, GLM-Z1",
      .tensors = {.fused_gate_up = true, .qkv_bias = Presence::kOptional},
      .adjust = adjust_glm4,
  };
  return kFamily;
}

}  // namespace kvasir
