// Exaone 4 (LG AI Research, arXiv 2507.11407): norms only after; norms of each head of queries and keys; in the model
// of 64 layers, three layers of a window that rotate for each that sees everything and does not.
#include "base/status.h"
#include "model/family.h"

namespace kvasir {
namespace {

Status adjust_exaone4(Keys& keys, ModelConfig* model) {
  give_norms_only_after(model);
  if (!keys.has("attention.sliding_window")) return {};
  return read_rotating_windows(keys, model, 4);
}

}  // namespace

const Family& exaone4_family() {
  static constexpr Family kFamily{
      .name = "exaone4",
      .covers = "Exaone 4",
      .tensors = {.pairs = RotaryPairs::kHalves, .qk_norm = Presence::kAlways},
      .adjust = adjust_exaone4,
  };
  return kFamily;
}

}  // namespace kvasir
