#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

// Mistral 7B v0.1 has a window, Mixtral has experts.
Status adjust_llama(Keys& keys, ModelConfig* model) {
  KVASIR_RETURN_IF_ERROR(read_window(keys, model));
  return read_experts_if_any(keys, model, {.normalized = true});
}

}  // namespace

const Family& llama_family() {
  static constexpr Family kFamily{
      .name = "llama",
      .covers = "Llama 2 and 3, Mistral, Mixtral, TinyLlama, SmolLM2, DeepSeek-R1-Distill-Llama",
      .tensors = {.qkv_bias = Presence::kOptional, .other_biases = Presence::kOptional},
      .adjust = adjust_llama,
  };
  return kFamily;
}

}  // namespace kvasir
