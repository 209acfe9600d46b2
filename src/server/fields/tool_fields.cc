#include "server/fields/tool_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/ordered_json.h"
#include "base/status.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostToolsBytes = std::size_t{1} << 20;
constexpr std::size_t kLongestId = 256;
constexpr std::int64_t kMostBudget = std::int64_t{1} << 40;

Status wrong_message(std::size_t index, std::string_view field, std::string_view needs) {
  return invalid_argument("'messages[{}].{}' must be {}", index, field, needs).about({"messages"});
}

// Reads an optional string of a message.
Status read_text_of(const Json& json, std::size_t index, const char* field, std::size_t most, std::string& value) {
  const Json* found = find_field(json, field);
  if (found == nullptr) return {};
  if (!found->is_string() || found->get_ref<const std::string&>().size() > most)
    return wrong_message(index, field, most == std::string::npos ? "a string" : "a string of at most 256 bytes");
  value = found->get<std::string>();
  return {};
}

Status read_call(const Json& json, std::size_t index, ToolCall& call) {
  if (!json.is_object()) return wrong_message(index, "tool_calls", "a list of objects");
  if (const Json* type = find_field(json, "type"); type != nullptr && *type != "function")
    return wrong_message(index, "tool_calls[].type", "\"function\"");
  const Json* function = find_field(json, "function");
  const Json* name = function != nullptr && function->is_object() ? find_field(*function, "name") : nullptr;
  if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>().empty() ||
      name->get_ref<const std::string&>().size() > kLongestId)
    return wrong_message(index, "tool_calls[].function.name", "a string of 1 to 256 bytes");
  call.name = name->get<std::string>();
  if (const Json* id = find_field(json, "id"); id != nullptr) {
    if (!id->is_string() || id->get_ref<const std::string&>().size() > kLongestId)
      return wrong_message(index, "tool_calls[].id", "a string of at most 256 bytes");
    call.id = id->get<std::string>();
  }
  const Json* arguments = find_field(*function, "arguments");
  if (arguments == nullptr) {
    call.arguments = "{}";
  } else if (arguments->is_string()) {
    call.arguments = arguments->get<std::string>();
  } else if (arguments->is_object()) {
    call.arguments = arguments->dump(-1, ' ', false, Json::error_handler_t::replace);
  } else {
    return wrong_message(index, "tool_calls[].function.arguments", "a string of JSON");
  }
  return {};
}

Status read_tool_choice(const Fields& body, RequestOptions& options) {
  const Json* choice = find_field(body, "tool_choice");
  if (choice == nullptr || *choice == "auto") return {};
  if (*choice == "none") {
    options.tool_choice = ToolChoice::kNone;
    return {};
  }
  const Json* function = choice->is_object() ? find_field(*choice, "function") : nullptr;
  const Json* name = function != nullptr && function->is_object() ? find_field(*function, "name") : nullptr;
  if (*choice != "required" && (name == nullptr || !name->is_string()))
    return wrong_field("tool_choice",
                       "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}");
  if (options.tools.empty()) return invalid_argument("'tool_choice' needs 'tools'").about({"tool_choice"});
  if (name == nullptr) {
    options.tool_choice = ToolChoice::kRequired;
    return {};
  }
  options.tool_choice = ToolChoice::kNamed;
  options.tool_name = name->get<std::string>();
  return {};
}

}  // namespace

Status read_tools(const Fields& body, RequestOptions& options) {
  if (const Json* tools = find_field(body, "tools"); tools != nullptr && !tools->empty()) {
    if (!tools->is_array()) return wrong_field("tools", "a list of tools");
    options.tools = tools->dump(-1, ' ', false, Json::error_handler_t::replace);
    if (options.tools.size() > kMostToolsBytes) return wrong_field("tools", "at most 1 MiB of JSON");
  }
  KVASIR_RETURN_IF_ERROR(read_field(body, "parallel_tool_calls", options.parallel_tool_calls));
  return read_tool_choice(body, options);
}

Status read_thought_budget(const Fields& object, const char* field, const char* name, ApiRequest& request) {
  const Result<std::optional<std::int64_t>> read = read_whole(object, field, -1, kMostBudget);
  if (!read.ok()) return wrong_field(name, "a whole number of tokens, 0 (no thoughts) or -1 (no limit)");
  if (!*read || **read < 0) return {};
  const std::int64_t budget = **read;
  std::int64_t& least = request.options.generate.thought_budget;
  if (least < 0 || budget < least) {
    least = budget;
    request.budget_field = name;
  }
  return {};
}

void settle_thinking(RequestOptions& options) {
  if (options.generate.thought_budget != 0) return;
  options.thinking = Thinking::kOff;
  options.generate.thought_budget = -1;
}

Status set_effort(const std::string& effort, const char* field, ApiRequest& request) {
  static constexpr auto kEfforts =
      std::to_array<std::string_view>({"none", "minimal", "low", "medium", "high", "xhigh", "max"});
  if (std::ranges::find(kEfforts, effort) == kEfforts.end())
    return wrong_field(field, R"("none", "minimal", "low", "medium", "high", "xhigh" or "max")");
  if (effort == "none") {
    request.options.thinking = Thinking::kOff;
    return {};
  }
  request.options.template_arguments.emplace_back("reasoning_effort", Json(effort).dump());
  request.thinking_fields.emplace_back(field);
  return {};
}

Status read_thinking_object(const Fields& body, ApiRequest& request) {
  const Json* thinking = find_field(body, "thinking");
  if (thinking == nullptr) return {};
  constexpr const char* kNeeds = R"({"type": "enabled", "adaptive" or "disabled"})";
  if (!thinking->is_object()) return wrong_field("thinking", kNeeds);
  const Fields fields(*thinking);
  std::string type;
  if (!read_field(fields, "type", type).ok() || (type != "enabled" && type != "adaptive" && type != "disabled"))
    return wrong_field("thinking", kNeeds);
  request.options.thinking = type != "disabled" ? Thinking::kOn : Thinking::kOff;
  if (type != "disabled") request.thinking_fields.emplace_back("thinking");
  if (type == "enabled")
    KVASIR_RETURN_IF_ERROR(read_thought_budget(fields, "budget_tokens", "thinking.budget_tokens", request));
  body.add_nested("thinking", fields);
  return {};
}

Status read_thinking(const Fields& body, ApiRequest& request) {
  RequestOptions& options = request.options;
  if (const Json* arguments = find_field(body, "chat_template_kwargs");
      arguments != nullptr && arguments->is_object()) {
    for (const char* name : {"thinking", "enable_thinking"})
      if (const auto found = arguments->find(name); found != arguments->end() && found->is_boolean())
        options.thinking = found->get<bool>() ? Thinking::kOn : Thinking::kOff;
    KVASIR_RETURN_IF_ERROR(
        read_thought_budget(*arguments, "thinking_budget", "chat_template_kwargs.thinking_budget", request));
  }
  std::string effort;
  const char* effort_field = "reasoning_effort";
  KVASIR_RETURN_IF_ERROR(read_text(body, effort_field, 64, effort));
  if (const Json* reasoning = find_field(body, "reasoning"); reasoning != nullptr) {
    if (!reasoning->is_object()) return wrong_field("reasoning", "an object with 'effort' or 'max_tokens'");
    const Fields fields(*reasoning);
    if (!read_text(fields, "effort", 64, effort).ok())
      return wrong_field("reasoning.effort", "a string of at most 64 bytes");
    if (find_field(fields, "effort") != nullptr) effort_field = "reasoning.effort";
    KVASIR_RETURN_IF_ERROR(read_thought_budget(fields, "max_tokens", "reasoning.max_tokens", request));
    body.add_nested("reasoning", fields);
  }
  if (!effort.empty()) KVASIR_RETURN_IF_ERROR(set_effort(effort, effort_field, request));
  KVASIR_RETURN_IF_ERROR(read_thinking_object(body, request));
  for (const char* field :
       {"reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget"})
    KVASIR_RETURN_IF_ERROR(read_thought_budget(body, field, field, request));
  std::string format = "auto";
  KVASIR_RETURN_IF_ERROR(read_text(body, "reasoning_format", 64, format));
  if (format != "auto" && format != "deepseek")
    return make_status(StatusCode::kUnsupported,
                       "'reasoning_format' is always \"deepseek\" here: thoughts are in 'reasoning_content'")
        .about({"reasoning_format"});
  settle_thinking(options);
  return {};
}

std::string chat_tools(std::string_view tools, const char* schema) {
  using Ordered = nlohmann::ordered_json;
  const Ordered given = parse_ordered_json(tools).value;
  Ordered list = Ordered::array();
  for (const Ordered& tool : given) {
    if (!tool.is_object()) continue;
    Ordered function = Ordered::object();
    for (const auto& [field, name] : {std::pair<const char*, const char*>("name", "name"),
                                      {"description", "description"},
                                      {schema, "parameters"},
                                      {"strict", "strict"}})
      if (const auto found = tool.find(field); found != tool.end() && !found->is_null()) function[name] = *found;
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

Status read_message_parts(const Json& json, std::size_t index, Message& message) {
  KVASIR_RETURN_IF_ERROR(read_text_of(json, index, "name", kLongestId, message.name));
  if (message.role != "tool") message.name.clear();  // of a person: templates write none
  KVASIR_RETURN_IF_ERROR(read_text_of(json, index, "tool_call_id", kLongestId, message.tool_call_id));
  for (const char* field : {"reasoning", "reasoning_content"})
    KVASIR_RETURN_IF_ERROR(read_text_of(json, index, field, std::string::npos, message.reasoning));
  const Json* calls = find_field(json, "tool_calls");
  if (calls == nullptr || *calls == Json::array()) return {};
  if (message.role != "assistant")
    return invalid_argument("'messages[{}].tool_calls' is for messages of the assistant", index).about({"messages"});
  if (!calls->is_array() || calls->size() > kMostCalls)
    return wrong_message(index, "tool_calls", "a list of at most 128 calls");
  for (const Json& each : *calls) KVASIR_RETURN_IF_ERROR(read_call(each, index, message.tool_calls.emplace_back()));
  return {};
}

}  // namespace kvasir::server
