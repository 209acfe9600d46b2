#include "server/fields/ignored_fields.h"

#include <algorithm>

namespace kvasir::server {
namespace {

constexpr std::size_t kMostNames = 16;
constexpr std::size_t kLongestField = 64;

}  // namespace

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
