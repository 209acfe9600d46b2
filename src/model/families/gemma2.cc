// Gemma 2 (Gemma Team, arXiv 2408.00118): windows on every other layer; soft caps of attention scores and logits; norms
// before and after; GeGLU; scaled embeddings. The GGUF's norm weights have Gemma's "1 +" in them already.
#include <cmath>

#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_gemma2(Keys& keys, ModelConfig* model) {
  constexpr int kUsualWindow = 4096;
  constexpr int kLayersOf27B = 46;  // the one model whose scale is that of its width
  KVASIR_RETURN_IF_ERROR(read_scales(keys, model));
  model->embedding_scale = std::sqrt(static_cast<float>(model->width));
  KVASIR_ASSIGN_OR_RETURN(const int window, keys.positive_or("attention.sliding_window", 1u << 24, kUsualWindow));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_windowed_layers(keys, *model, 2));
  for (std::size_t l = 0; l < model->layers.size(); ++l) {
    LayerSpec& layer = model->layers[l];
    layer.norms_after = true;
    if (windowed[l]) layer.attention.window = window;
    if (model->layer_count() == kLayersOf27B)
      layer.attention.scale = 1 / std::sqrt(static_cast<float>(model->width / layer.attention.heads));
  }
  return {};
}

}  // namespace

const Family& gemma2_family() {
  static constexpr Family kFamily{
      .name = "gemma2",
      .covers = "Gemma 2",
      .feed_forward = {.function = ActivationFunction::kGeluTanh},
      .tensors = {.pairs = RotaryPairs::kHalves},
      .adjust = adjust_gemma2,
  };
  return kFamily;
}

}  // namespace kvasir
