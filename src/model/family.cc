#include "model/family.h"

#include <algorithm>

#include "base/status.h"

namespace kvasir {

std::string family_names() {
  std::string names;
  for (const Family* family : families()) {
    if (!names.empty()) names += ", ";
    names += family->name;
  }
  return names;
}

Status read_window(Keys& keys, ModelConfig* model) {
  if (!keys.has("attention.sliding_window")) return {};
  KVASIR_ASSIGN_OR_RETURN(const std::uint64_t window, keys.count("attention.sliding_window"));
  for (LayerSpec& layer : model->layers)
    layer.attention.window = static_cast<std::int64_t>(std::min<std::uint64_t>(window, 1u << 30));
  return {};
}

}  // namespace kvasir
