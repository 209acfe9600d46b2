#include "backend/page_format.h"

#include <fmt/core.h>

namespace kvasir {

std::string_view kv_type_name(KvType type) {
  switch (type) {
    case KvType::kF32: return "f32";
    case KvType::kF16: return "f16";
    case KvType::kBF16: return "bf16";
  }
  return "?";
}

std::optional<KvType> kv_type_from_name(std::string_view name) {
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16})
    if (name == kv_type_name(type)) return type;
  return std::nullopt;
}

std::string codec_name(const PageFormat& format) {
  if (format.key == format.value) return std::string(kv_type_name(format.key));
  return fmt::format("k={},v={}", kv_type_name(format.key), kv_type_name(format.value));
}

}  // namespace kvasir
