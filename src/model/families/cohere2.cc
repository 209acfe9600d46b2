// Command R7B and Command A (Cohere, arXiv 2504.00698): attention and feed-forward side by side behind one LayerNorm
// without biases; three layers of a window that rotate for each that sees everything and does not; scaled logits.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_cohere2(Keys& keys, ModelConfig* model) {
  KVASIR_RETURN_IF_ERROR(read_scales(keys, model));
  KVASIR_ASSIGN_OR_RETURN(const int window, keys.positive("attention.sliding_window", 1u << 24));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_windowed_layers(keys, *model, 4));
  model->rotary.emplace_back();
  for (std::size_t l = 0; l < model->layers.size(); ++l) {
    LayerSpec& layer = model->layers[l];
    layer.parallel = layer.shared_norm = true;
    if (windowed[l]) {
      layer.attention.window = window;
    } else {
      layer.attention.rotary = 1;
    }
  }
  return {};
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
