// LFM2 (Liquid AI 2025): short convolutions on most layers, attention with norms of queries and keys on the others.
#include "model/families/hybrids/lfm2.h"

#include "base/status.h"
#include "model/mixers/short_convolution.h"

namespace kvasir {

Status read_short_convolutions(Keys& keys, ModelConfig* model) {
  KVASIR_RETURN_IF_ERROR(read_window(keys, model));
  KVASIR_ASSIGN_OR_RETURN(const int taps, keys.positive("shortconv.l_cache", ShortConvolution::kMostTaps));
  if (taps < 2) return data_loss("{} is {}, below 2", keys.name("shortconv.l_cache"), taps);
  const auto width = static_cast<std::uint64_t>(model->width);
  const auto mixer = std::make_shared<ShortConvolution>(model->width, taps);
  for (std::size_t l = 0; l < model->layers.size(); ++l)
    if (model->layers[l].attention.kv_heads == 0)
      model->layers[l].state = StateSpec{
          .mixer = mixer,
          .inputs = {"shortconv.in_proj"},
          .output = "shortconv.out_proj",
          .parameters = {{"shortconv.conv.weight", {static_cast<std::uint64_t>(taps), width}}},
      };
  return {};
}

const Family& lfm2_family() {
  static constexpr Family kFamily{
      .name = "lfm2",
      .covers = "LFM2, LFM2.5",
      .tensors = {.pairs = RotaryPairs::kHalves, .qk_norm = Presence::kAlways, .output_norm = "token_embd_norm"},
      .adjust = read_short_convolutions,
  };
  return kFamily;
}

}  // namespace kvasir
