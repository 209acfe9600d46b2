#include "dialogue/call_parts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status.h"
#include "dialogue/literal.h"
#include "grammar/sources/schema_set.h"

namespace kvasir {
namespace {

constexpr std::string_view kPythonTag = "<|python_tag|>";  // Llama 3.1 may write it before a call

constexpr int kDeepestAlternative = 8;

bool has_type(const nlohmann::ordered_json& value, const nlohmann::ordered_json& type) {
  if (type == "integer" || type == "number") return value.is_number();
  return type == value.type_name();
}

// Whether a schema allows the type of a value, as far as its own types, constants and alternatives tell.
bool may_be(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value, int depth) {
  if (!schema.is_object() || depth > kDeepestAlternative) return true;
  const auto any = [](const nlohmann::ordered_json* list, const auto& fits) {
    return list == nullptr || !list->is_array() || std::ranges::any_of(*list, fits);
  };
  const auto same_type = [&](const auto& constant) {
    return constant.type() == value.type() || (constant.is_number() && value.is_number());
  };
  const auto allowed = [&](const auto& alternative) { return may_be(alternative, value, depth + 1); };
  const auto typed = [&](const auto& type) { return has_type(value, type); };
  const nlohmann::ordered_json* type = grammar::member(schema, "type");
  const nlohmann::ordered_json* nullable = grammar::member(schema, "nullable");
  const nlohmann::ordered_json* constant = grammar::member(schema, "const");
  if (value.is_null() && nullable != nullptr && *nullable == true) return true;
  if (type != nullptr && type->is_string() && !typed(*type)) return false;
  if (constant != nullptr && !same_type(*constant)) return false;
  return any(type, typed) && any(grammar::member(schema, "enum"), same_type) &&
         any(grammar::member(schema, "anyOf"), allowed) && any(grammar::member(schema, "oneOf"), allowed);
}

}  // namespace

std::string mark_of(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('<') || text.starts_with('[')) {
    const std::size_t end = text.find(text[0] == '<' ? '>' : ']');
    if (end != std::string_view::npos) return std::string(text.substr(0, end + 1));
  }
  return std::string(text.substr(0, text.find_first_of(" \t\r\n")));
}

bool has_mark(const CallFormat& calls) {
  return mark_of(calls.section_open + calls.open).size() > 1 || mark_of(calls.open).size() > 1;
}

std::vector<CallTrigger> triggers_of(const CallFormat& calls) {
  const std::string whole = calls.section_open + calls.open;
  if (!has_mark(calls)) return {{std::string(kPythonTag), std::string(kPythonTag) + whole}};
  std::vector<CallTrigger> triggers;
  for (const std::string& opening : {whole, calls.open}) {
    const std::string mark = mark_of(opening);
    if (mark.size() > 1 && (triggers.empty() || triggers[0].opening != opening)) triggers.push_back({mark, opening});
  }
  return triggers;
}

bool is_bracketed(CallFormat::Shape shape) {
  return shape == CallFormat::Shape::kPython || shape == CallFormat::Shape::kGemma;
}

std::string_view behind_name(const CallFormat& calls) {
  if (calls.shape == CallFormat::Shape::kPython) return "(";
  return calls.shape == CallFormat::Shape::kGemma ? "{" : std::string_view(calls.after_name);
}

const nlohmann::ordered_json* schema_of(const Tool& tool, const std::string& parameter) {
  const nlohmann::ordered_json& root = tool.parameters;
  const nlohmann::ordered_json* properties = grammar::member(grammar::referred(root, root), "properties");
  const nlohmann::ordered_json* found = properties != nullptr ? grammar::member(*properties, parameter) : nullptr;
  return found != nullptr ? &grammar::referred(root, *found) : nullptr;
}

WantedValue wanted_by(const nlohmann::ordered_json* schema) {
  if (schema == nullptr || !schema->is_object()) return WantedValue::kAny;
  if (const auto nullable = schema->find("nullable"); nullable != schema->end() && *nullable == true)
    return WantedValue::kAny;
  const auto type = schema->find("type");
  if (type != schema->end() && type->is_string()) return *type == "string" ? WantedValue::kText : WantedValue::kOther;
  const auto is_text = [](const auto& value) { return value.is_string(); };
  if (const auto value = schema->find("const"); value != schema->end())
    return is_text(*value) ? WantedValue::kText : WantedValue::kAny;
  const auto values = schema->find("enum");
  const bool all = values != schema->end() && values->is_array() && std::ranges::all_of(*values, is_text);
  return all ? WantedValue::kText : WantedValue::kAny;
}

nlohmann::ordered_json value_of(std::string_view text, const nlohmann::ordered_json* schema) {
  std::optional<nlohmann::ordered_json> value = parse_value(trimmed(text));
  const bool fits = value && (schema == nullptr || may_be(*schema, *value, 0) || !may_be(*schema, "", 0));
  return fits ? std::move(*value) : nlohmann::ordered_json(text);
}

ValueOpening find_value(const CallFormat& calls, std::string_view text) {
  const std::string_view text_mark = trimmed(calls.string_open), other_mark = trimmed(calls.other_open);
  const std::size_t text_at = text.find(text_mark), other_at = text.find(other_mark);
  ValueOpening opening;
  opening.at = std::min(text_at, other_at);
  opening.found = opening.at != std::string_view::npos;
  if (!opening.found) return opening;
  // Where one mark begins the other, the longer one counts.
  opening.is_text = text_at < other_at || (text_at == other_at && text_mark.size() >= other_mark.size());
  const std::string_view open = opening.is_text ? calls.string_open : calls.other_open;
  opening.size = opening.at + trimmed(open).size();
  opening.space = open.substr(trimmed_right(open).size());
  return opening;
}

std::string value_end(const CallFormat& calls) {
  return std::string(trimmed_right(calls.value_close));
}

const Tool* tool_of_id(const AnswerRules& rules, std::string_view id) {
  constexpr std::string_view kFunctions = "functions.";
  if (id.starts_with(kFunctions)) id.remove_prefix(kFunctions.size());
  return rules.find_tool(id.substr(0, id.rfind(':')));
}

std::size_t certain_bytes(std::string_view value, std::string_view close) {
  const std::string_view mark = trimmed(close), space = close.substr(0, close.size() - mark.size());
  std::size_t kept = std::max(partial_marker(value, mark), partial_marker(value, close));
  if (kept == 0 && !space.empty() && value.ends_with(space)) kept = space.size();
  if (value.substr(0, value.size() - kept).ends_with(space)) kept += space.size();
  std::size_t size = value.size() - std::min(kept, value.size());
  while (size > 0 && (static_cast<unsigned char>(value[size - 1]) & 0x80) != 0) --size;
  return size;
}

bool continues_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

std::string escaped(std::string_view text) {
  const std::string quoted = spaced_json(text);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace kvasir
