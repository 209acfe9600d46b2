// Qwen 3.5 with experts (Alibaba 2026), beside a shared one behind a gate.
#include "base/status.h"
#include "model/families/hybrids/qwen35.h"

namespace kvasir {
namespace {

Status adjust_qwen35moe(Keys& keys, ModelConfig* model) {
  KVASIR_RETURN_IF_ERROR(read_delta_nets(keys, model));
  return read_experts(keys, model, {.shared_gate = true, .normalized = true});
}

}  // namespace

const Family& qwen35moe_family() {
  static constexpr Family kFamily{
      .name = "qwen35moe",
      .covers = "Qwen3.5-35B-A3B, Qwen3.6-35B-A3B, Qwen3.5-122B-A10B",
      .tensors = kQwen35Tensors,
      .adjust = adjust_qwen35moe,
  };
  return kFamily;
}

}  // namespace kvasir
