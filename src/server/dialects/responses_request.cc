#include "server/dialects/responses_request.h"

#include <fmt/core.h>

#include <map>
#include <utility>

#include "base/status.h"
#include "server/dialects/fields.h"
#include "server/fields/grammar_fields.h"
#include "server/fields/json_fields.h"
#include "server/fields/sampling_fields.h"
#include "server/fields/tool_fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

template <class... Args>
Status wrong_item(fmt::format_string<Args...> format, Args&&... args) {
  return invalid_argument(format, std::forward<Args>(args)...).about({"input"});
}

class ResponsesReader {
  static constexpr std::size_t kMostItems = 10'000;
  static constexpr std::size_t kMostFunctions = 256;

 public:
  ResponsesReader(const Json& body, ResponseStore& store, const ReadContext& context)
      : body_(body), store_(store), context_(context) {}

  Result<ResponsesBody> read() && {
    ApiRequest& request = read_.request;
    request.chat = true;
    KVASIR_RETURN_IF_ERROR(
        refuse_fields(body_, {"background", "conversation", "prompt", "max_tool_calls", "context_management"}));
    KVASIR_RETURN_IF_ERROR(read_include());
    KVASIR_RETURN_IF_ERROR(refuse_values());
    KVASIR_RETURN_IF_ERROR(read_field(body_, "model", request.model));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "stream", request.stream));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "store", read_.store));
    KVASIR_RETURN_IF_ERROR(read_limit());
    SamplingOptions& sampling = request.options.generate.sampling;
    sampling = usual_sampling(body_, context_.sampling);
    KVASIR_RETURN_IF_ERROR(read_field(body_, "temperature", sampling.temperature));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "top_p", sampling.top_p));
    KVASIR_RETURN_IF_ERROR(read_names());
    KVASIR_RETURN_IF_ERROR(read_kv(body_, request.options));
    KVASIR_RETURN_IF_ERROR(read_text_format());
    KVASIR_RETURN_IF_ERROR(read_grammar_fields(body_, request));
    KVASIR_RETURN_IF_ERROR(read_reasoning());
    KVASIR_RETURN_IF_ERROR(read_functions());
    KVASIR_RETURN_IF_ERROR(read_previous());
    KVASIR_RETURN_IF_ERROR(read_input());
    return finish();
  }

 private:
  // Fields of which only some values can be honoured.
  Status refuse_values() {
    const auto only = [&](const char* field, std::initializer_list<Json> values) -> Status {
      const Json* found = find_field(body_, field);
      if (found == nullptr) return {};
      for (const Json& value : values)
        if (*found == value) return {};
      return not_done(field, fmt::format("can only be {} here", text_of(*values.begin())));
    };
    KVASIR_RETURN_IF_ERROR(only("truncation", {"disabled"}));
    bool& parallel = read_.request.options.parallel_tool_calls;
    KVASIR_RETURN_IF_ERROR(read_field(body_, "parallel_tool_calls", parallel));
    read_.repeated["parallel_tool_calls"] = parallel;
    KVASIR_RETURN_IF_ERROR(only("top_logprobs", {0}));
    KVASIR_RETURN_IF_ERROR(only("service_tier", {"auto", "default"}));
    return {};
  }

  // Agents that do not store responses ask for encrypted thoughts, to send them back. Here the content of a reasoning
  // item is the thoughts as text, which serves them as well: the header names the field.
  Status read_include() {
    const Json* include = find_field(body_.object(), "include");  // stays unknown, so that the header names it
    if (include == nullptr || include->empty()) {
      find_field(body_, "include");
      return {};
    }
    if (!include->is_array()) return wrong_field("include", "a list of strings");
    for (const Json& each : *include)
      if (each != "reasoning.encrypted_content")
        return not_done("include",
                        fmt::format("has {:.60}, which is not supported here; \"reasoning.encrypted_content\" is "
                                    "accepted, without effect",
                                    text_of(each)));
    return {};
  }

  Status read_limit() {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    std::int64_t most = -1;
    KVASIR_RETURN_IF_ERROR(read_whole(body_, "max_output_tokens", 1, kMost, most));
    read_.request.options.generate.max_tokens = most;
    read_.request.token_limit_given = most >= 0;
    read_.repeated["max_output_tokens"] = most >= 0 ? Json(most) : Json();
    return {};
  }

  // Fields for the client's own records.
  Status read_names() {
    std::string name;
    for (const char* field : {"user", "safety_identifier"}) KVASIR_RETURN_IF_ERROR(read_text(body_, field, 512, name));
    read_.repeated["metadata"] = Json::object();
    const Json* metadata = find_field(body_, "metadata");
    if (metadata == nullptr) return {};
    constexpr const char* kNeeds = "an object of at most 16 texts of up to 512 bytes, with names of up to 64";
    if (!metadata->is_object() || metadata->size() > 16) return wrong_field("metadata", kNeeds);
    for (const auto& [key, value] : metadata->items())
      if (key.size() > 64 || !value.is_string() || value.get_ref<const std::string&>().size() > 512)
        return wrong_field("metadata", kNeeds);
    read_.repeated["metadata"] = *metadata;
    return {};
  }

  Status read_text_format() {
    read_.repeated["text"] = {{"format", {{"type", "text"}}}};
    const Json* text = find_field(body_, "text");
    if (text == nullptr) return {};
    if (!text->is_object()) return wrong_field("text", "an object");
    const Fields fields(*text);
    const Json* format = find_field(fields, "format");
    body_.add_nested("text", fields);
    if (format == nullptr) return {};
    const Json type = format->is_object() ? format->value("type", Json()) : Json();
    read_.request.grammar_field = "text.format";
    if (type == "json_schema") {
      const Json* schema = find_field(*format, "schema");
      if (schema == nullptr || !schema->is_object()) return wrong_field("text.format.schema", "an object");
      read_.request.grammar = schema_grammar(*schema);
      read_.request.grammar_path = {"text", "format", "schema"};
    } else if (type == "json_object") {
      read_.request.grammar = GrammarSource{};
    } else if (type != "text") {
      return wrong_field("text.format", "of type 'text', 'json_object' or 'json_schema'");
    }
    read_.repeated["text"]["format"] = *format;
    return {};
  }

  Status read_reasoning() {
    const Json* reasoning = find_field(body_, "reasoning");
    if (reasoning == nullptr) return {};
    if (!reasoning->is_object()) return wrong_field("reasoning", "an object");
    const Fields fields(*reasoning);
    KVASIR_RETURN_IF_ERROR(read_thought_budget(fields, "max_tokens", "reasoning.max_tokens", read_.request));
    std::string effort;
    KVASIR_RETURN_IF_ERROR(read_text(fields, "effort", 16, effort));
    body_.add_nested("reasoning", fields);
    if (!effort.empty()) {
      read_.request.options.thinking = Thinking::kOn;
      KVASIR_RETURN_IF_ERROR(set_effort(effort, "reasoning.effort", read_.request));
      read_.repeated["reasoning"] = {{"effort", effort}, {"summary", nullptr}};
    }
    settle_thinking(read_.request.options);
    return {};
  }

  Status read_tool_choice(const Json* choice, bool has_tools) {
    if (choice == nullptr || *choice == "auto" || *choice == "none") return {};
    RequestOptions& options = read_.request.options;
    if (*choice == "required") {
      options.tool_choice = ToolChoice::kRequired;
    } else if (choice->is_object() && choice->value("type", Json()) == "function" &&
               read_field(*choice, "name", options.tool_name).ok() && !options.tool_name.empty()) {
      options.tool_choice = ToolChoice::kNamed;
    } else {
      return wrong_field("tool_choice", R"("none", "auto", "required" or {"type": "function", "name": ...})");
    }
    if (!has_tools) return invalid_argument("'tool_choice' needs 'tools'").about({"tool_choice"});
    return {};
  }

  Status read_functions() {
    const Json* choice = find_field(body_, "tool_choice");
    read_.repeated["tool_choice"] = choice != nullptr ? *choice : Json("auto");
    read_.repeated["tools"] = Json::array();
    const Json* tools = find_field(body_, "tools");
    KVASIR_RETURN_IF_ERROR(read_tool_choice(choice, tools != nullptr && !tools->empty()));
    if (tools == nullptr) return {};
    if (!tools->is_array() || tools->size() > kMostFunctions)
      return wrong_field("tools", "a list of at most 256 tools");
    for (const Json& tool : *tools) {
      const Json type = tool.is_object() ? tool.value("type", Json()) : Json();
      if (type != "function")
        return not_done("tools",
                        fmt::format("has one of type {:.60}, and only \"function\" is supported here", text_of(type)));
      const Json* name = find_field(tool, "name");
      if (name == nullptr || !name->is_string()) return wrong_field("tools", "a list of functions with a 'name'");
    }
    read_.repeated["tools"] = *tools;
    if (tools->empty() || (choice != nullptr && *choice == "none")) return {};
    read_.request.tools_path = {"tools"};
    read_.request.tools_schema = "parameters";
    read_.request.options.tools = chat_tools(text_of(*tools), "parameters");
    return {};
  }

  Status read_previous() {
    std::string id;
    KVASIR_RETURN_IF_ERROR(read_field(body_, "previous_response_id", id));
    read_.repeated["previous_response_id"] = id.empty() ? Json() : Json(id);
    if (id.empty()) return {};
    const std::shared_ptr<const StoredResponse> previous = store_.find(context_.caller, id);
    if (previous == nullptr)
      return invalid_argument(
                 "there is no response '{:.80}'; it was not stored, has made room for newer ones, or is "
                 "another key's: send the whole conversation as 'input'",
                 id)
          .about({"previous_response_id"});
    read_.conversation = previous->messages;
    for (const Message& message : read_.conversation)
      for (const ToolCall& call : message.tool_calls) calls_[call.id] = call.name;
    return {};
  }

  Status read_input() {
    const Json* input = find_field(body_, "input");
    if (input == nullptr) return invalid_argument("'input' is missing").about({"input"});
    if (input->is_string()) {
      read_.conversation.push_back({"user", input->get<std::string>()});
      return {};
    }
    if (!input->is_array() || input->empty() || input->size() > kMostItems)
      return wrong_field("input", "a string or a list of 1 to 10000 items");
    for (std::size_t i = 0; i < input->size(); ++i) {
      const Json& item = (*input)[i];
      if (!item.is_object()) return wrong_item("'input[{}]' must be an object", i);
      const Json* type = find_field(item, "type");
      if (type == nullptr || *type == "message") {
        KVASIR_RETURN_IF_ERROR(read_message(item, i));
      } else if (*type == "function_call") {
        KVASIR_RETURN_IF_ERROR(read_call(item, i));
      } else if (*type == "function_call_output") {
        KVASIR_RETURN_IF_ERROR(read_call_output(item, i));
      } else if (*type == "reasoning") {
        KVASIR_RETURN_IF_ERROR(read_thoughts(item, i));
      } else {
        return unsupported("'input[{}]' is of type {:.60}, which is not supported here", i, text_of(*type))
            .about({"input"});
      }
    }
    return {};
  }

  // Returns a text, or the texts of a list of parts.
  static Result<std::string> read_parts(const Json& item, const char* field, std::size_t index) {
    const Json* content = find_field(item, field);
    if (content != nullptr && content->is_string()) return content->get<std::string>();
    if (content == nullptr || !content->is_array())
      return wrong_item("'input[{}].{}' must be a string or a list of parts", index, field);
    std::string text;
    for (const Json& part : *content) {
      const Json type = part.is_object() ? part.value("type", Json()) : Json();
      if (type != "input_text" && type != "output_text" && type != "text" && type != "reasoning_text")
        return unsupported("'input[{}].{}' has a part of type {:.60}, which is not supported here; text is", index,
                           field, text_of(type))
            .about({"input"});
      const Json* said = find_field(part, "text");
      if (said == nullptr || !said->is_string())
        return wrong_item("'input[{}].{}' has a part without 'text'", index, field);
      text += said->get_ref<const std::string&>();
    }
    return text;
  }

  static Result<std::string> text_of_item(const Json& item, const char* field, std::size_t index) {
    const Json* text = find_field(item, field);
    if (text == nullptr || !text->is_string()) return wrong_item("'input[{}].{}' must be a string", index, field);
    return text->get<std::string>();
  }

  // Returns the message of the assistant that an item is part of: thoughts, text and calls of one turn make one.
  Message& turn_of_assistant() {
    if (read_.conversation.empty() || read_.conversation.back().role != "assistant")
      read_.conversation.push_back({"assistant", {}});
    return read_.conversation.back();
  }

  Status read_message(const Json& item, std::size_t index) {
    KVASIR_ASSIGN_OR_RETURN(const std::string role, text_of_item(item, "role", index));
    if (role != "user" && role != "assistant" && role != "system" && role != "developer")
      return wrong_item("'input[{}].role' must be 'user', 'assistant', 'system' or 'developer'", index);
    KVASIR_ASSIGN_OR_RETURN(std::string text, read_parts(item, "content", index));
    if (role != "assistant") {
      read_.conversation.push_back({role == "developer" ? "system" : role, std::move(text)});
      return {};
    }
    Message& turn = turn_of_assistant();
    const bool taken = !turn.content.empty() || !turn.tool_calls.empty();
    (taken ? read_.conversation.emplace_back(Message{"assistant", {}}) : turn).content = std::move(text);
    return {};
  }

  Status read_call(const Json& item, std::size_t index) {
    ToolCall call;
    KVASIR_ASSIGN_OR_RETURN(call.id, text_of_item(item, "call_id", index));
    KVASIR_ASSIGN_OR_RETURN(call.name, text_of_item(item, "name", index));
    KVASIR_ASSIGN_OR_RETURN(call.arguments, text_of_item(item, "arguments", index));
    calls_[call.id] = call.name;
    turn_of_assistant().tool_calls.push_back(std::move(call));
    return {};
  }

  Status read_call_output(const Json& item, std::size_t index) {
    Message output{"tool", {}};
    KVASIR_ASSIGN_OR_RETURN(output.tool_call_id, text_of_item(item, "call_id", index));
    KVASIR_ASSIGN_OR_RETURN(output.content, read_parts(item, "output", index));
    if (const auto call = calls_.find(output.tool_call_id); call != calls_.end()) output.name = call->second;
    read_.conversation.push_back(std::move(output));
    return {};
  }

  Status read_thoughts(const Json& item, std::size_t index) {
    if (find_field(item, "content") == nullptr) return {};  // a summary alone says nothing of them
    KVASIR_ASSIGN_OR_RETURN(std::string text, read_parts(item, "content", index));
    read_.conversation.push_back({"assistant", {}, std::move(text)});
    return {};
  }

  Result<ResponsesBody> finish() {
    std::string instructions;
    KVASIR_RETURN_IF_ERROR(read_field(body_, "instructions", instructions));
    RequestOptions& options = read_.request.options;
    if (!instructions.empty()) options.messages.push_back({"system", instructions});
    options.messages.insert(options.messages.end(), read_.conversation.begin(), read_.conversation.end());
    options.prompt_end = PromptEnd::kOpen;
    if (!read_.store) read_.conversation.clear();
    KVASIR_RETURN_IF_ERROR(refuse_other_constraints(body_, "use 'text.format' or 'structured_outputs'"));
    read_.request.ignored = body_.unknown();
    read_.repeated["instructions"] = instructions.empty() ? Json() : Json(std::move(instructions));
    return std::move(read_);
  }

  const Fields body_;
  ResponseStore& store_;
  const ReadContext& context_;
  ResponsesBody read_;
  std::map<std::string, std::string> calls_;  // name of each call, by its id
};

}  // namespace

Result<ResponsesBody> read_responses(const Json& body, ResponseStore& store, const ReadContext& context) {
  return ResponsesReader(body, store, context).read();
}

}  // namespace kvasir::server
