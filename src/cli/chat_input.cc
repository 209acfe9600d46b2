#include "cli/chat_input.h"

#include <utility>

#include "base/mapped_file.h"
#include "base/status.h"

namespace kvasir::cli {
namespace {

bool parse_call(const Json& json, ToolCall& call) {
  if (!json.is_object() || !json.contains("function") || !json["function"].is_object()) return false;
  const Json& function = json["function"];
  for (const char* key : {"name", "arguments"})
    if (!function.contains(key) || !function[key].is_string()) return false;
  if (json.contains("id") && json["id"].is_string()) call.id = json["id"];
  call.name = function["name"];
  call.arguments = function["arguments"];
  return true;
}

}  // namespace

CLI::Option* add_chat_template_option(CLI::App& command, std::string& file) {
  return command
      .add_option("--chat-template", file, "File with the chat template (Jinja), in place of the model's own")
      ->type_name("FILE");
}

Result<std::string> read_chat_template(const std::string& file) {
  if (file.empty()) return std::string();
  KVASIR_ASSIGN_OR_RETURN(std::string source, read_file(file, std::size_t{1} << 20));
  if (source.empty())
    return invalid_argument("the chat template '{}' is empty; give another file", printable(file, 200));
  return source;
}

CLI::Option* add_template_arg_option(CLI::App& command, std::vector<std::pair<std::string, std::string>>& arguments) {
  return command
      .add_option_function<std::vector<std::string>>(
          "--template-arg",
          [&arguments](const std::vector<std::string>& given) {
            for (const std::string& each : given) {
              const std::size_t at = each.find('=');
              if (at == std::string::npos || at == 0)
                throw CLI::ValidationError("--template-arg", "needs NAME=VALUE, not '" + printable(each, 200) + "'");
              arguments.emplace_back(each.substr(0, at), each.substr(at + 1));
            }
          },
          "Variable of the chat template, such as enable_thinking=false; may be repeated")
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("NAME=VALUE");
}

Result<std::vector<ChatMessage>> parse_messages(std::string_view json) {
  Json list;
  try {
    list = Json::parse(json);
  } catch (const Json::parse_error& error) {
    return invalid_argument(
        "the conversation is not valid JSON at byte {}; give [{{\"role\": \"user\", \"content\": \"...\"}}, ...]",
        error.byte);
  }
  if (!list.is_array())
    return invalid_argument(
        "the conversation is no JSON array; give [{{\"role\": \"user\", \"content\": \"...\"}}, ...]");
  std::vector<ChatMessage> messages;
  for (const Json& entry : list) {
    const auto is_text = [&](const char* key) { return entry.contains(key) && entry[key].is_string(); };
    const bool calls = entry.is_object() && entry.contains("tool_calls") && entry["tool_calls"].is_array();
    if (!entry.is_object() || !is_text("role") || !(is_text("content") || calls))
      return invalid_argument("message {} of the conversation needs \"role\" and \"content\", both strings",
                              messages.size() + 1);
    ChatMessage message = {entry["role"], is_text("content") ? entry["content"].get<std::string>() : ""};
    for (const auto& [key, text] : {std::pair{"reasoning_content", &message.reasoning},
                                    {"tool_call_id", &message.tool_call_id},
                                    {"name", &message.name}})
      if (is_text(key)) *text = entry[key];
    if (calls)
      for (const Json& each : entry["tool_calls"])
        if (!parse_call(each, message.tool_calls.emplace_back()))
          return invalid_argument(
              "message {} of the conversation needs calls with \"function\": {{\"name\", \"arguments\"}}, both strings",
              messages.size() + 1);
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace kvasir::cli
