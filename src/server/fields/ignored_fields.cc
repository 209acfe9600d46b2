#include "server/fields/ignored_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvasir::server {
namespace {

constexpr std::size_t kMostNames = 16;
constexpr std::size_t kLongestField = 64;

}  // namespace

void note_unknown(const nlohmann::json& object, std::initializer_list<std::string_view> known,
                  std::vector<std::string>& ignored, std::string_view path) {
  if (!object.is_object()) return;
  for (const auto& [name, value] : object.items()) {
    if (ignored.size() > kMostNames) return;  // one more than the header shows
    if (std::ranges::find(known, std::string_view(name)) != known.end()) continue;
    ignored.push_back(std::string(path) + name.substr(0, kLongestField));
  }
}

std::string ignored_header(const std::vector<std::string>& ignored) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  };
  std::string value;
  for (std::size_t i = 0; i < std::min(ignored.size(), kMostNames); ++i) {
    if (i > 0) value += ", ";
    for (const char c : std::string_view(ignored[i]).substr(0, kLongestField)) value += is_plain(c) ? c : '?';
  }
  if (ignored.size() > kMostNames) value += ", ...";
  return value;
}

}  // namespace kvasir::server
