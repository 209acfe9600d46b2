// Olmo 2 (arXiv 2501.00656) and Olmo 3 (Ai2 2025): norms only after; norms of all heads of queries and of keys
// together; in Olmo 3, three layers of a window for each that sees everything, which alone has its rotation scaled.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_olmo2(Keys& keys, ModelConfig* model) {
  give_norms_only_after(model);
  if (!keys.has("attention.sliding_window")) return {};
  KVASIR_ASSIGN_OR_RETURN(const int window, keys.positive("attention.sliding_window", 1u << 24));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_windowed_layers(keys, *model, 4));
  const RotaryEmbedding& whole = model->rotary.front();
  double base = whole.base;
  if (keys.has("rope.freq_base_swa")) {
    KVASIR_ASSIGN_OR_RETURN(base, keys.number("rope.freq_base_swa"));
  }
  KVASIR_ASSIGN_OR_RETURN(RotaryEmbedding local, plain_rotary_embedding(whole.dims, base));
  model->rotary.push_back(std::move(local));
  for (std::size_t l = 0; l < model->layers.size(); ++l) {
    if (!windowed[l]) continue;
    model->layers[l].attention.window = window;
    model->layers[l].attention.rotary = 1;
  }
  return {};
}

}  // namespace

const Family& olmo2_family() {
  static constexpr Family kFamily{
      .name = "olmo2",
      .covers = "Olmo 2, Olmo 3",
      .tensors = {.pairs = RotaryPairs::kHalves, .qk_norm = Presence::kAlways, .qk_norm_of_row = true},
      .adjust = adjust_olmo2,
  };
  return kFamily;
}

}  // namespace kvasir
