#include "server/dialects/fields.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "server/api/api_response.h"
#include "server/fields/json_fields.h"

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

Status refuse_fields(const Json& body, std::initializer_list<const char*> fields) {
  for (const char* field : fields) {
    const Json* found = find_field(body, field);
    if (found != nullptr && !asks_nothing(*found)) return not_done(field, "is not supported here; omit it");
  }
  return {};
}

Status read_texts(const Json& body, const char* field, std::vector<std::string>& texts) {
  const Json* found = find_field(body, field);
  if (found == nullptr) return {};
  constexpr std::size_t kMost = 16, kLongest = 1024;
  const Json list = found->is_string() ? Json::array({*found}) : *found;
  if (!list.is_array() || list.size() > kMost) return wrong_field(field, "a string or a list of at most 16 strings");
  for (const Json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty())
      return wrong_field(field, "a string or a list of strings that are not empty");
    if (text.get_ref<const std::string&>().size() > kLongest)
      return wrong_field(field, "strings of at most 1024 bytes");
    texts.push_back(text.get<std::string>());
  }
  return {};
}

SamplingOptions usual_sampling(const Json& body, const SamplingOptions& usual) {
  SamplingOptions sampling = usual;
  if (find_field(body, "temperature") == nullptr) return sampling;
  sampling.top_k = 0;
  sampling.top_p = 1;
  sampling.min_p = 0;
  sampling.repetition_penalty = 1;
  return sampling;
}

Status read_seed_field(const Json& body, SamplingOptions& sampling) {
  const Json* found = find_field(body, "seed");
  if (found == nullptr) return {};
  const std::optional<std::int64_t> number = whole_number(*found);
  if (!number && !found->is_number_unsigned()) return wrong_field("seed", "a whole number");
  sampling.seed = number ? static_cast<std::uint64_t>(*number) : found->get<std::uint64_t>();
  if (sampling.seed == 0) sampling.seed = std::uint64_t{1} << 63;  // 0 would let the engine draw one
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
