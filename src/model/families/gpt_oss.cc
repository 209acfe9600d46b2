// gpt-oss (OpenAI, arXiv 2508.10925): a window on every other layer, a sink for each head, biases everywhere, experts
// with a clamped SwiGLU, weighted by the softmax of the chosen.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_gpt_oss(Keys& keys, ModelConfig* model) {
  KVASIR_ASSIGN_OR_RETURN(const int window, keys.positive("attention.sliding_window", 1u << 24));
  // Layers alternate, and the first has the window.
  KVASIR_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_windowed_layers(keys, *model, 2));
  for (std::size_t l = 0; l < model->layers.size(); ++l) {
    AttentionSpec& attention = model->layers[l].attention;
    attention.sinks = true;
    if (windowed[l]) attention.window = window;
  }
  return read_experts(keys, model, {.scores = ExpertScores::kSoftmaxOfChosen, .biases = true});
}

}  // namespace

const Family& gpt_oss_family() {
  static constexpr Family kFamily{
      .name = "gpt-oss",
      .covers = "gpt-oss-20b, gpt-oss-120b",
      .feed_forward = {.function = ActivationFunction::kClampedSwiglu},
      .tensors = {.pairs = RotaryPairs::kHalves,
                  .qkv_bias = Presence::kAlways,
                  .other_biases = Presence::kAlways,
                  .ffn_norm = "post_attention_norm"},
      .yarn = {.exact_range = true},
      .adjust = adjust_gpt_oss,
  };
  return kFamily;
}

}  // namespace kvasir
