#include "server/models/asked_model.h"

#include <cstddef>
#include <nlohmann/json.hpp>

#include "server/fields/raw_member.h"

namespace kvasir::server {
namespace {

constexpr std::size_t kLongestName = 4096;  // bytes, as it is written in the body

}  // namespace

std::string asked_model(std::string_view body, const std::string& field) {
  const std::string_view raw = raw_member(body, {&field, 1});
  // Parses names alone: other values may be as large as the body, and the I/O thread has others to serve.
  if (!raw.starts_with('"') || raw.size() > kLongestName) return {};
  const nlohmann::json name = nlohmann::json::parse(raw, nullptr, false);
  return name.is_string() ? name.get<std::string>() : std::string();
}

}  // namespace kvasir::server
