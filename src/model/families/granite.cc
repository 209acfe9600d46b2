// Granite 3 (IBM 2024): Llama's layers with factors for embeddings, attention, what layers add, and logits.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

// The file's logit_scale divides.
Status adjust_granite(Keys& keys, ModelConfig* model) {
  KVASIR_RETURN_IF_ERROR(read_scales(keys, model));
  model->logit_scale = 1 / model->logit_scale;
  return {};
}

}  // namespace

const Family& granite_family() {
  static constexpr Family kFamily{
      .name = "granite",
      .covers = "Granite 3 (dense)",
      .tensors = {.other_biases = Presence::kOptional},
      .adjust = adjust_granite,
  };
  return kFamily;
}

}  // namespace kvasir
