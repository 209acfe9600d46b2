#include "tasks/item_variables.h"

#include <algorithm>
#include <utility>

#include "base/ordered_json.h"
#include "base/status.h"
#include "jinja/json_value.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kNone = "None";

jinja::Value value_of(const Json& json) {
  return jinja::parse_json(dump_line(json)).value_or(jinja::Value());
}

void set(jinja::Variables* variables, const std::string& name, jinja::Value value) {
  const auto same = std::ranges::find(*variables, name, &std::pair<std::string, jinja::Value>::first);
  if (same == variables->end()) {
    variables->emplace_back(name, std::move(value));
  } else {
    same->second = std::move(value);
  }
}

bool has_null(const Json& json) {
  return json.is_null() || (json.is_structured() && std::ranges::any_of(json, has_null));
}

// Returns the value with an empty text, which conditions take alike, for each null.
Json without_nulls(Json json) {
  if (json.is_null()) return "";
  if (json.is_structured())
    for (Json& each : json) each = without_nulls(std::move(each));
  return json;
}

std::size_t count_none(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(kNone); at != std::string_view::npos; at = text.find(kNone, at + kNone.size()))
    ++count;
  return count;
}

}  // namespace

ItemVariables::ItemVariables(const Json& record, std::size_t index, const ItemVariables& outer)
    : variables_(outer.variables_), nulls_(outer.nulls_) {
  for (const auto& field : record.items()) {
    set(&variables_, field.key(), value_of(field.value()));
    std::erase_if(nulls_, [&](const auto& null) { return null.first == field.key(); });
    if (has_null(field.value())) nulls_.emplace_back(field.key(), value_of(without_nulls(field.value())));
  }
  set(&variables_, "index", jinja::Value::integer(static_cast<std::int64_t>(index)));
}

Result<std::string> ItemVariables::render(const TaskTemplate& text, const char* name) const {
  if (!text.parsed) return std::string();
  const Result<jinja::Text> rendered = jinja::render(*text.parsed, variables_, 0);
  if (!rendered.ok()) return invalid_argument("'{}': {}", name, rendered.status().message());
  KVASIR_RETURN_IF_ERROR(check_nulls(text, name, rendered->bytes()));
  return rendered->bytes();
}

Status ItemVariables::check_nulls(const TaskTemplate& text, const char* name, std::string_view written) const {
  const std::size_t count = count_none(written);
  if (count == 0) return {};
  for (const auto& [field, emptied] : nulls_) {
    jinja::Variables variables = variables_;
    set(&variables, field, emptied);
    const Result<jinja::Text> without = jinja::render(*text.parsed, variables, 0);
    if (without.ok() && count_none(without->bytes()) < count)
      return invalid_argument("the field '{}' {} null, for which '{}' would write \"None\"; give a text", field,
                              jinja::find(variables_, field)->is_none() ? "is" : "holds", name);
  }
  return {};
}

}  // namespace kvasir
