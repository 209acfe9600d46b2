#include "dialogue/answer_format.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "dialogue/literal.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSpace = " \t\r\n";

Json arguments_of(const ToolCall& call) {
  const std::optional<Json> json = parse_value(call.arguments);
  return json && json->is_object() ? *json : Json::object();
}

std::string written_object(const CallFormat& format, const ToolCall& call) {
  const Json arguments = arguments_of(call);
  Json inner = Json::object();
  if (!format.name_first) inner[format.arguments_key] = arguments;
  inner[format.name_key] = call.name;
  if (format.name_first) inner[format.arguments_key] = arguments;
  if (!format.id_key.empty()) inner[format.id_key] = call.id;
  if (!format.wrapper.empty()) inner = {{format.wrapper, inner}};
  return spaced_json(inner);
}

std::string written_tagged(const CallFormat& format, const ToolCall& call) {
  std::string text = call.name + format.after_name;
  const Json arguments = arguments_of(call);
  for (const auto& [key, value] : arguments.items()) {
    text += format.key_open + key + (value.is_string() ? format.string_open : format.other_open);
    text += value.is_string() ? value.get<std::string>() : spaced_json(value);
    text += format.value_close;
  }
  return text;
}

// `number`: of the call in its answer.
std::string written_call(const CallFormat& format, const ToolCall& call, std::size_t number) {
  switch (format.shape) {
    case CallFormat::Shape::kNone: return {};
    case CallFormat::Shape::kObject: return written_object(format, call);
    case CallFormat::Shape::kNamed:
      if (format.name_in_id)
        return (is_named_id(call.id, call.name) ? call.id : named_id(call.name, number)) + format.after_name +
               spaced_json(arguments_of(call));
      return call.name + format.after_name + (format.after_id.empty() ? "" : call.id + format.after_id) +
             spaced_json(arguments_of(call));
    case CallFormat::Shape::kTagged: return written_tagged(format, call);
    case CallFormat::Shape::kPython: return call.name + "(" + python_arguments(arguments_of(call)) + ")";
    case CallFormat::Shape::kGemma: return call.name + gemma_literal(arguments_of(call));
  }
  return {};
}

}  // namespace

std::string named_id(std::string_view name, std::size_t number) {
  return fmt::format("functions.{}:{}", name, number);
}

bool is_named_id(std::string_view id, std::string_view name) {
  const std::string start = fmt::format("functions.{}:", name);
  return id.size() > start.size() && id.starts_with(start) &&
         id.find_first_not_of("0123456789", start.size()) == std::string_view::npos;
}

std::string written_calls(const CallFormat& format, std::span<const ToolCall> calls) {
  std::string text;
  for (const ToolCall& call : calls) {
    text += text.empty() ? format.section_open : format.between;
    text += format.open + written_call(format, call, static_cast<std::size_t>(&call - calls.data())) + format.close;
  }
  return text.empty() ? text : text + format.section_close;
}

LooseMatch match_loosely(std::string_view text, std::string_view literal) {
  std::size_t at = 0;
  for (const char wanted : literal) {
    if (kSpace.find(wanted) != std::string_view::npos) continue;
    while (at < text.size() && kSpace.find(text[at]) != std::string_view::npos) ++at;
    if (at == text.size()) return {LooseMatch::Kind::kPart, 0};
    if (text[at] != wanted) return {};
    ++at;
  }
  return {LooseMatch::Kind::kYes, at};
}

std::string_view trimmed_left(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

std::string_view trimmed_right(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

std::string_view trimmed(std::string_view text) {
  return trimmed_right(trimmed_left(text));
}

std::size_t partial_marker(std::string_view text, std::string_view marker) {
  if (marker.empty()) return 0;
  for (std::size_t size = std::min(text.size(), marker.size() - 1); size > 0; --size)
    if (text.ends_with(marker.substr(0, size))) return size;
  return 0;
}

}  // namespace kvasir
