#include "server/fields/grammar_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "server/api/api_response.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;
using Kind = GrammarSource::Kind;

class GrammarReader {
 public:
  explicit GrammarReader(ApiRequest& request) : request_(request) {}

  Status schema(const Json& schema, const char* field, std::vector<std::string> path) {
    if (!schema.is_object() && !schema.is_boolean()) return wrong_field(field, "a JSON schema, which is an object");
    KVASIR_RETURN_IF_ERROR(set({Kind::kJsonSchema, text_of(schema), {}}, field));
    request_.grammar_path = std::move(path);
    return {};
  }

  Status text(const Json& text, Kind kind, const char* field) {
    if (!text.is_string()) return wrong_field(field, "a string");
    if (text == "") return empty(field);
    return set({kind, text.get<std::string>(), {}}, field);
  }

  // An empty constraint would be none, and the answer free without a word.
  static Status empty(const char* field) {
    return invalid_argument("'{}' is empty, so it says nothing of the answer; omit it", field).about({field});
  }

  Status choice(const Json& list, const char* field) {
    GrammarSource source{Kind::kChoice, {}, {}};
    if (!list.is_array()) return wrong_field(field, "a list of strings");
    for (const Json& each : list) {
      if (!each.is_string()) return wrong_field(field, "a list of strings");
      source.choices.push_back(each.get<std::string>());
    }
    return set(std::move(source), field);
  }

  Status set(GrammarSource source, const char* field) {
    if (request_.grammar)
      return invalid_argument("'{}' and '{}' both say what the answer looks like; omit one of them",
                              request_.grammar_field, field)
          .about({field});
    request_.grammar = std::move(source);
    request_.grammar_field = field;
    return {};
  }

 private:
  ApiRequest& request_;
};

Status read_response_format(const Json& format, GrammarReader& reader) {
  constexpr const char* kField = "response_format";
  const Json* type = format.is_object() ? find_field(format, "type") : nullptr;
  if (type == nullptr) return wrong_field(kField, "an object with 'type'");
  if (*type == "text") return {};
  if (*type == "json_object") {
    // Some servers take a schema here.
    const Json* schema = find_field(format, "schema");
    return schema != nullptr ? reader.schema(*schema, kField, {kField, "schema"}) : reader.set(GrammarSource{}, kField);
  }
  if (*type == "json_schema") {
    const Json* named = find_field(format, "json_schema");
    const Json* schema = named != nullptr && named->is_object() ? find_field(*named, "schema") : nullptr;
    if (schema == nullptr)
      return invalid_argument(
                 "'response_format' of type \"json_schema\" needs 'json_schema', an object with the schema as 'schema'")
          .about({kField});
    return reader.schema(*schema, kField, {kField, "json_schema", "schema"});
  }
  if (*type == "regex" && find_field(format, "pattern") != nullptr)
    return reader.text(*find_field(format, "pattern"), Kind::kRegex, kField);
  if (*type == "grammar" && find_field(format, "grammar") != nullptr)
    return reader.text(*find_field(format, "grammar"), Kind::kGbnf, kField);
  return unsupported(
             "'response_format' has the type {:.64}, which is not supported here; there are \"text\", "
             "\"json_object\" and \"json_schema\"",
             text_of(*type))
      .about({kField});
}

Status read_structured_outputs(const Json& outputs, GrammarReader& reader) {
  constexpr const char* kField = "structured_outputs";
  if (!outputs.is_object()) return wrong_field(kField, "an object");
  bool given = false;
  for (const auto& [name, value] : outputs.items()) {
    if (value.is_null() || value == false) continue;
    given = true;
    if (name == "json") {
      constexpr const char* kJson = "structured_outputs.json";
      KVASIR_RETURN_IF_ERROR(value.is_string() ? reader.text(value, Kind::kJsonSchema, kJson)
                                               : reader.schema(value, kJson, {kField, "json"}));
    } else if (name == "regex") {
      KVASIR_RETURN_IF_ERROR(reader.text(value, Kind::kRegex, "structured_outputs.regex"));
    } else if (name == "grammar") {
      KVASIR_RETURN_IF_ERROR(reader.text(value, Kind::kGbnf, "structured_outputs.grammar"));
    } else if (name == "choice") {
      KVASIR_RETURN_IF_ERROR(reader.choice(value, "structured_outputs.choice"));
    } else if (name == "json_object") {
      KVASIR_RETURN_IF_ERROR(reader.set(GrammarSource{}, "structured_outputs.json_object"));
    } else {
      return unsupported(
                 "'structured_outputs.{:.64}' is not supported here; there are 'json', 'regex', 'choice', 'grammar' "
                 "and "
                 "'json_object'",
                 name)
          .about({kField});
    }
  }
  return given ? Status() : GrammarReader::empty(kField);
}

// Fields that restrict an answer in some API.
constexpr const char* kConstraints[] = {
    "choice",      "format",        "grammar", "guided_choice",   "guided_grammar",     "guided_json", "guided_regex",
    "json_schema", "output_format", "regex",   "response_format", "structured_outputs", "tool_choice"};

// Whether a constraint is one in name only.
bool restricts_nothing(std::string_view field, const Json& value) {
  if (field == "tool_choice") return value == "auto" || value == "none";
  return field == "response_format" && value.is_object() && value.value("type", Json()) == "text";
}

}  // namespace

Status read_grammar_fields(const Fields& body, ApiRequest& request, EmptyGrammar empty) {
  GrammarReader reader(request);
  if (const Json* found = body.find("response_format"); found != nullptr)
    KVASIR_RETURN_IF_ERROR(read_response_format(*found, reader));
  if (const Json* found = body.find("structured_outputs"); found != nullptr)
    KVASIR_RETURN_IF_ERROR(read_structured_outputs(*found, reader));
  for (const char* field : {"guided_json", "json_schema"})
    if (const Json* found = body.find(field); found != nullptr)
      KVASIR_RETURN_IF_ERROR(found->is_string() ? reader.text(*found, Kind::kJsonSchema, field)
                                                : reader.schema(*found, field, {field}));
  if (const Json* found = body.find("guided_regex"); found != nullptr)
    KVASIR_RETURN_IF_ERROR(reader.text(*found, Kind::kRegex, "guided_regex"));
  if (const Json* found = body.find("guided_grammar"); found != nullptr)
    KVASIR_RETURN_IF_ERROR(reader.text(*found, Kind::kGbnf, "guided_grammar"));
  if (const Json* found = body.find("grammar"); found != nullptr && !(empty == EmptyGrammar::kNone && *found == ""))
    KVASIR_RETURN_IF_ERROR(reader.text(*found, Kind::kGbnf, "grammar"));
  if (const Json* found = body.find("guided_choice"); found != nullptr)
    KVASIR_RETURN_IF_ERROR(reader.choice(*found, "guided_choice"));
  return {};
}

Status refuse_other_constraints(const Fields& body, std::string_view instead) {
  for (const char* field : kConstraints) {
    const auto found = body.object().find(field);
    if (found == body.object().end() || found->is_null() || body.knows(field) || restricts_nothing(field, *found))
      continue;
    return unsupported("'{}' has no effect here; {}", field, instead).about({field});
  }
  return {};
}

// The field of each API that says what a text looks like applies to no call. Clients send it beside a demanded call.
Status check_grammar_with_tools(const ApiRequest& request) {
  constexpr std::string_view kFormatsOfTexts[] = {"response_format", "text.format", "output_config.format", "format"};
  const ToolChoice choice = request.options.tool_choice;
  if (!request.grammar || (choice != ToolChoice::kRequired && choice != ToolChoice::kNamed)) return {};
  if (std::ranges::find(kFormatsOfTexts, request.grammar_field) != std::end(kFormatsOfTexts)) return {};
  return invalid_argument(
             "'tool_choice' makes the answer a call of a tool, so '{}' would have no effect; omit one of them",
             request.grammar_field)
      .about({request.grammar_field});
}

}  // namespace kvasir::server
