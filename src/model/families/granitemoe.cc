// Granite 3 with experts (IBM 2024): Granite's factors, softmax of the chosen experts, and perhaps a shared one.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

// The file's logit_scale divides. The softmax of the chosen outputs is that of all, divided by the sum of the chosen.
Status adjust_granitemoe(Keys& keys, ModelConfig* model) {
  KVASIR_RETURN_IF_ERROR(read_scales(keys, model));
  model->logit_scale = 1 / model->logit_scale;
  return read_experts(keys, model, {.scores = ExpertScores::kSoftmaxOfChosen});
}

}  // namespace

const Family& granitemoe_family() {
  static constexpr Family kFamily{
      .name = "granitemoe",
      .covers = "Granite 3 (experts)",
      .adjust = adjust_granitemoe,
  };
  return kFamily;
}

}  // namespace kvasir
