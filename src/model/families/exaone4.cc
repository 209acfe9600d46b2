// Exaone 4 (LG AI Research, arXiv 2507.11407): norms only after; norms of each head of queries and keys; in the model
// of 64 layers, three layers of a window that rotate for each that sees everything and does not.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_exaone4(Keys& keys, ModelConfig* model) {
  for (LayerSpec& layer : model->layers) {
    layer.norms_before = false;
    layer.norms_after = true;
  }
  if (!keys.has("attention.sliding_window")) return {};
  KVASIR_ASSIGN_OR_RETURN(const int window, keys.positive("attention.sliding_window", 1u << 24));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_windowed_layers(keys, *model, 4));
  model->rotary.emplace_back();
  for (std::size_t l = 0; l < model->layers.size(); ++l) {
    if (windowed[l]) {
      model->layers[l].attention.window = window;
    } else {
      model->layers[l].attention.rotary = 1;
    }
  }
  return {};
}

}  // namespace

const Family& exaone4_family() {
  static constexpr Family kFamily{
      .name = "exaone4",
      .covers = "Exaone 4",
      .tensors = {.pairs = RotaryPairs::kHalves, .qk_norm = Presence::kAlways},
      .adjust = adjust_exaone4,
  };
  return kFamily;
}

}  // namespace kvasir
