#include "server/models/asked_model.h"

#include <nlohmann/json.hpp>

#include "server/fields/raw_member.h"

namespace kvasir::server {

std::string asked_model(std::string_view body, const std::string& field) {
  const nlohmann::json name = nlohmann::json::parse(raw_member(body, {&field, 1}), nullptr, false);
  return name.is_string() ? name.get<std::string>() : std::string();
}

}  // namespace kvasir::server
