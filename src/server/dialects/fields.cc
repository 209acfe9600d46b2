#include "server/dialects/fields.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "server/api/api_response.h"
#include "server/fields/json_fields.h"
#include "server/fields/sampling_fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

bool asks_nothing(const Json& value) {
  return value == false || value == "" || (value.is_structured() && value.empty());
}

}  // namespace

Status not_done(const char* field, std::string_view why) {
  return unsupported("'{}' {}", field, why).about({field});
}

Status refuse_fields(const Fields& body, std::initializer_list<const char*> fields) {
  for (const char* field : fields) {
    const Json* found = find_field(body, field);
    if (found != nullptr && !asks_nothing(*found)) return not_done(field, "is not supported here; omit it");
  }
  return {};
}

Status read_bounded_stops(const Fields& body, const char* field, std::vector<std::string>& stops) {
  KVASIR_RETURN_IF_ERROR(read_stops(body, field, stops));
  for (const std::string& stop : stops)
    if (stop.size() > kLongestStop) return wrong_field(field, fmt::format("strings of at most {} bytes", kLongestStop));
  return {};
}

GrammarSource schema_grammar(const Json& schema) {
  return {GrammarSource::Kind::kJsonSchema, text_of(schema), {}};
}

void set_template_argument(RequestOptions& options, std::string name, const Json& value) {
  options.template_arguments.emplace_back(std::move(name), text_of(value));
}

Json arguments_object(const std::string& text) {
  Json parsed = Json::parse(text, nullptr, false);
  if (parsed.is_object()) return parsed;
  return text.empty() ? Json::object() : Json{{"arguments", text}};
}

std::string named_event(std::string_view name, const Json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, text_of(data));
}

}  // namespace kvasir::server
