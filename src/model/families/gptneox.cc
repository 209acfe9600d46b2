#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_gptneox(Keys& keys, ModelConfig* model) {
  bool parallel = true;
  if (keys.has("use_parallel_residual")) {
    KVASIR_ASSIGN_OR_RETURN(parallel, keys.truth("use_parallel_residual"));
  }
  for (LayerSpec& layer : model->layers) layer.parallel = parallel;
  return {};
}

}  // namespace

const Family& gptneox_family() {
  static constexpr Family kFamily{
      .name = "gptneox",
      .covers = "Pythia",
      .norm = NormKind::kLayer,
      .feed_forward = {.function = ActivationFunction::kGelu, .gated = false},
      .tensors = {.pairs = RotaryPairs::kHalves,
                  .fused_qkv = Presence::kAlways,
                  .qkv_bias = Presence::kAlways,
                  .other_biases = Presence::kAlways},
      .adjust = adjust_gptneox,
  };
  return kFamily;
}

}  // namespace kvasir
