// OLMoE (arXiv 2409.02060): norms of all heads of queries and of keys together; experts weighted by the softmax of all.
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_olmoe(Keys& keys, ModelConfig* model) {
  return read_experts(keys, model);
}

}  // namespace

const Family& olmoe_family() {
  static constexpr Family kFamily{
      .name = "olmoe",
      .covers = "OLMoE-1B-7B",
      .tensors = {.pairs = RotaryPairs::kHalves, .qk_norm = Presence::kAlways, .qk_norm_of_row = true},
      .adjust = adjust_olmoe,
  };
  return kFamily;
}

}  // namespace kvasir
