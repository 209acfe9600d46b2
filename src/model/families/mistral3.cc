// Ministral 3 (Mistral AI 2025): Llama's layers, with queries that grow with their position.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_mistral3(Keys& keys, ModelConfig* model) {
  if (keys.has("attention.temperature_scale")) {
    KVASIR_ASSIGN_OR_RETURN(const double temperature, keys.number("attention.temperature_scale"));
    if (!(temperature >= 0 && temperature < 1e3))
      return data_loss("{} is {}, outside 0 to 1000", keys.name("attention.temperature_scale"), temperature);
    if (temperature > 0) {
      KVASIR_ASSIGN_OR_RETURN(const int span, keys.positive("rope.scaling.original_context_length", 1u << 30));
      for (LayerSpec& layer : model->layers) {
        layer.attention.temperature = static_cast<float>(temperature);
        layer.attention.temperature_span = span;
      }
    }
  }
  return read_experts_if_any(keys, model, {.normalized = true});
}

}  // namespace

const Family& mistral3_family() {
  static constexpr Family kFamily{
      .name = "mistral3",
      .covers = "Ministral 3, Mistral Small 3",
      .tensors = {.other_biases = Presence::kOptional},
      .yarn = {.log_multiplier = true},
      .adjust = adjust_mistral3,
  };
  return kFamily;
}

}  // namespace kvasir
