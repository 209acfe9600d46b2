#include "model/family.h"

namespace kvasir {

const Family& llama_family() {
  static constexpr Family kFamily{
      .name = "llama",
      .covers = "Llama 2 and 3, Mistral, TinyLlama, SmolLM2, DeepSeek-R1-Distill-Llama",
      .tensors = {.qkv_bias = Presence::kOptional, .other_biases = Presence::kOptional},
      .adjust = read_window,  // Mistral 7B v0.1
  };
  return kFamily;
}

}  // namespace kvasir
