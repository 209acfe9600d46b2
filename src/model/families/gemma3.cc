// Gemma 3 (Gemma Team, arXiv 2503.19786): five layers of a window for each that sees everything, with rotary bases of
// their own; norms of queries and keys; norms before and after; GeGLU; scaled embeddings. The GGUF's norm weights have
// Gemma's "1 +" in them already.
#include <cmath>

#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

constexpr int kPattern = 6;  // every sixth layer sees everything

Status adjust_gemma3(Keys& keys, ModelConfig* model) {
  constexpr int kLayersOf27B = 62;  // the one model whose scale is that of its width
  model->embedding_scale = std::sqrt(static_cast<float>(model->width));
  KVASIR_ASSIGN_OR_RETURN(const int window, keys.positive("attention.sliding_window", 1u << 24));
  KVASIR_ASSIGN_OR_RETURN(const int pattern, keys.positive_or("attention.sliding_window_pattern", 4096, kPattern));
  KVASIR_RETURN_IF_ERROR(add_window_rotation(keys, model->rotary.front().dims, model));
  for (int l = 0; l < model->layer_count(); ++l) {
    LayerSpec& layer = model->layers[static_cast<std::size_t>(l)];
    layer.norms_after = true;
    AttentionSpec& attention = layer.attention;
    if (model->layer_count() == kLayersOf27B)
      attention.scale = 1 / std::sqrt(static_cast<float>(model->width) / static_cast<float>(attention.heads));
    if ((l + 1) % pattern == 0) continue;
    attention.window = window;
    attention.rotary = 1;
  }
  return {};
}

}  // namespace

const Family& gemma3_family() {
  static constexpr Family kFamily{
      .name = "gemma3",
      .covers = "Gemma 3",
      .feed_forward = {.function = ActivationFunction::kGeluTanh},
      .tensors = {.pairs = RotaryPairs::kHalves, .qk_norm = Presence::kAlways},
      .adjust = adjust_gemma3,
  };
  return kFamily;
}

}  // namespace kvasir
