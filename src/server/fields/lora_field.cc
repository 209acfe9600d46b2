#include "server/fields/lora_field.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"

namespace kvasir::server {

using Json = nlohmann::json;

Result<std::vector<AdapterScale>> read_adapter_scales(const Json& list) {
  constexpr const char* kNeeds =
      R"(a list of at most 64 objects {"id": 0, "scale": 1}, or with "name" in place of "id")";
  constexpr std::size_t kLongestAdapterName = 512;
  if (!list.is_array() || list.size() > kMostAdapters) return wrong_field("lora", kNeeds);
  std::vector<AdapterScale> scales;
  for (const Json& each : list) {
    if (!each.is_object()) return wrong_field("lora", kNeeds);
    for (const auto& [key, value] : each.items())
      if (key != "id" && key != "name" && key != "scale")
        return wrong_field("lora", R"(a list of objects with "id" or "name", and "scale" alone)");
    AdapterScale& scale = scales.emplace_back();
    const Fields fields(each);
    const bool by_id = fields.find("id") != nullptr;
    if (!read_field(fields, "scale", scale.scale).ok())
      return wrong_field("lora", R"(a list of objects whose "scale" is a number)");
    if (!read_whole(fields, "id", 0, std::numeric_limits<int>::max(), scale.id).ok() ||
        !read_text(fields, "name", kLongestAdapterName, scale.name).ok())
      return wrong_field("lora", R"(a list of objects whose "id" is a whole number of 0 or more, or "name" a text)");
    if (by_id != scale.name.empty()) return wrong_field("lora", R"(a list of objects with either "id" or "name")");
  }
  return scales;
}

Status read_lora(const Fields& body, std::optional<std::vector<AdapterScale>>& scales) {
  const Json* list = find_field(body, "lora");
  if (list == nullptr) return {};
  KVASIR_ASSIGN_OR_RETURN(scales, read_adapter_scales(*list));
  return {};
}

}  // namespace kvasir::server
