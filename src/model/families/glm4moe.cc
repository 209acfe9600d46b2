// GLM-4.5 (arXiv 2508.06471): half of a head rotated; experts chosen by a sigmoid with a bias, beside a shared one; the
// first layers are dense.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_glm4moe(Keys& keys, ModelConfig* model) {
  return read_experts(keys, model, {.scores = ExpertScores::kSigmoid, .normalized = true});
}

}  // namespace

const Family& glm4moe_family() {
  static constexpr Family kFamily{
      .name = "glm4moe",
      .covers = "GLM-4.5, GLM-4.5-Air, GLM-4.6",
      .tensors = {.pairs = RotaryPairs::kHalves,
                  .qkv_bias = Presence::kOptional,
                  .qk_norm = Presence::kOptional,
                  .ffn_norm = "post_attention_norm"},
      .adjust = adjust_glm4moe,
  };
  return kFamily;
}

}  // namespace kvasir
