#include "server/models/asked_model.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "server/fields/json_fields.h"
#include "server/fields/raw_member.h"

namespace kvasir::server {
namespace {

constexpr std::size_t kLongestName = 4096;  // bytes, as it is written in the body

}  // namespace

Result<std::string> asked_model(std::string_view body, const char* field) {
  const std::string path[] = {field};
  const std::string_view raw = raw_member(body, path);
  // Parses names alone: other values may be as large as the body, and the I/O thread has others to serve.
  constexpr std::string_view kOthers = "{[-0123456789tf";  // begin a value that is neither a string nor null
  if (!raw.empty() && kOthers.find(raw.front()) != std::string_view::npos) return wrong_field(field, "a string");
  if (!raw.starts_with('"')) return std::string();
  if (raw.size() > kLongestName)
    return invalid_argument("'{}' is longer than {} bytes; GET /v1/models lists the names that there are", field,
                            kLongestName)
        .about({field});
  const nlohmann::json name = nlohmann::json::parse(raw, nullptr, false);
  return name.is_string() ? name.get<std::string>() : std::string();  // a string with a wrong escape is no JSON
}

}  // namespace kvasir::server
