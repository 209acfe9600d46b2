// SmolLM3 (Hugging Face 2025): Llama's layers, of which every fourth does not rotate queries and keys (Yang et al.,
// arXiv 2501.18795). The GGUF does not say which.
#include "model/family.h"

namespace kvasir {
namespace {

constexpr int kUnrotated = 4;  // every fourth layer

Status adjust_smollm3(Keys& keys, ModelConfig* model) {
  static_cast<void>(keys);
  model->rotary.emplace_back();
  for (std::size_t l = kUnrotated - 1; l < model->layers.size(); l += kUnrotated) model->layers[l].attention.rotary = 1;
  return {};
}

}  // namespace

const Family& smollm3_family() {
  static constexpr Family kFamily{
      .name = "smollm3",
      .covers = "SmolLM3",
      .adjust = adjust_smollm3,
  };
  return kFamily;
}

}  // namespace kvasir
