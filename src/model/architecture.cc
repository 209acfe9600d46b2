#include "model/architecture.h"

namespace kvasir {

std::span<const Architecture> architectures() {
  static constexpr Architecture kArchitectures[] = {
      {.name = "llama",
       .covers = "Llama 2 and 3, Mistral, TinyLlama, SmolLM2, DeepSeek-R1-Distill-Llama",
       .qkv_bias = Presence::kOptional,
       .other_biases = Presence::kOptional,
       .sliding_window = true},
      {.name = "qwen2",
       .covers = "Qwen1.5, Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen",
       .pairs = RotaryPairs::kHalves,
       .qkv_bias = Presence::kAlways},
      {.name = "qwen3",
       .covers = "Qwen3 (dense)",
       .pairs = RotaryPairs::kHalves,
       .qkv_bias = Presence::kOptional,
       .qk_norm = Presence::kAlways},
      {.name = "gptneox",
       .covers = "Pythia",
       .norm = NormKind::kLayer,
       .feed_forward = {.function = ActivationFunction::kGelu, .gated = false},
       .pairs = RotaryPairs::kHalves,
       .fused_qkv = true,
       .qkv_bias = Presence::kAlways,
       .other_biases = Presence::kAlways,
       .parallel_residual = true},
  };
  return kArchitectures;
}

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& architecture : architectures())
    if (architecture.name == name) return &architecture;
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture& architecture : architectures()) {
    if (!names.empty()) names += ", ";
    names += architecture.name;
  }
  return names;
}

}  // namespace kvasir
