// Command R7B and Command A (Cohere, arXiv 2504.00698): attention and feed-forward side by side behind one LayerNorm
// without biases; three layers of a window that rotate for each that sees everything and does not; scaled logits.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_cohere2(Keys& keys, ModelConfig* model) {
  KVASIR_RETURN_IF_ERROR(read_scales(keys, model));
  for (LayerSpec& layer : model->layers) layer.parallel = layer.shared_norm = true;
  return read_rotating_windows(keys, model, 4);
}

}  // namespace

const Family& cohere2_family() {
  static constexpr Family kFamily{
      .name = "cohere2",
      .covers = "Command R7B, Command A",
      .norm = NormKind::kUnbiasedLayer,
      .adjust = adjust_cohere2,
  };
  return kFamily;
}

}  // namespace kvasir
