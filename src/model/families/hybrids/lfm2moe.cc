// LFM2 with experts (Liquid AI 2025): chosen by a sigmoid with a bias; the first layers are dense.
#include "base/status.h"
#include "model/families/hybrids/lfm2.h"

namespace kvasir {
namespace {

Status adjust_lfm2moe(Keys& keys, ModelConfig* model) {
  KVASIR_RETURN_IF_ERROR(read_short_convolutions(keys, model));
  return read_experts(keys, model, {.scores = ExpertScores::kSigmoid, .normalized = true});
}

}  // namespace

const Family& lfm2moe_family() {
  static constexpr Family kFamily{
      .name = "lfm2moe",
      .covers = "LFM2-8B-A1B, LFM2-24B-A2B",
      .tensors = {.pairs = RotaryPairs::kHalves, .qk_norm = Presence::kAlways, .output_norm = "token_embd_norm"},
      .adjust = adjust_lfm2moe,
  };
  return kFamily;
}

}  // namespace kvasir
