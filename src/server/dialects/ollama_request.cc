#include "server/dialects/ollama_request.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "server/dialects/fields.h"
#include "server/dialects/infill.h"
#include "server/dialects/llama_options.h"
#include "server/dialects/ollama.h"
#include "server/fields/grammar_fields.h"
#include "server/fields/json_fields.h"
#include "server/fields/tool_fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

class OllamaReader {
 public:
  OllamaReader(const Json& body, bool chat, const ReadContext& context) : body_(body), context_(context) {
    request_.chat = chat;
  }

  Result<ApiRequest> read() && {
    request_.stream = true;
    KVASIR_RETURN_IF_ERROR(read_field(body_, "stream", request_.stream));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "model", request_.model));
    request_.model = ollama_model(std::move(request_.model));
    KVASIR_RETURN_IF_ERROR(refuse_fields(body_, {"logprobs", "top_logprobs", "truncate", "shift"}));
    KVASIR_RETURN_IF_ERROR(read_options());
    KVASIR_RETURN_IF_ERROR(read_format());
    KVASIR_RETURN_IF_ERROR(read_grammar_fields(body_, request_));
    KVASIR_RETURN_IF_ERROR(read_think());
    KVASIR_RETURN_IF_ERROR(read_kv(body_, request_.options));
    KVASIR_RETURN_IF_ERROR(request_.chat ? read_chat() : read_generate());
    KVASIR_RETURN_IF_ERROR(check_keep_alive(body_));
    KVASIR_RETURN_IF_ERROR(refuse_other_constraints(body_, "use 'format' or 'grammar'; tools are for /api/chat"));
    request_.ignored = body_.unknown();
    return std::move(request_);
  }

 private:
  Status read_options() {
    GenerateOptions& generate = request_.options.generate;
    generate.sampling = context_.sampling;
    const Json* options = find_field(body_, "options");
    if (options == nullptr) return {};
    if (!options->is_object()) return wrong_field("options", "an object");
    const Fields fields(*options);
    KVASIR_RETURN_IF_ERROR(read_llama_options(fields, generate));
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    std::int64_t most = -1;  // -1: until the model ends; -2: until the context is full
    KVASIR_RETURN_IF_ERROR(read_whole(fields, "num_predict", -2, kMost, most));
    generate.max_tokens = most < 0 ? -1 : most;
    request_.token_limit_given = most >= 0;
    std::int64_t context = 0;
    KVASIR_RETURN_IF_ERROR(read_whole(fields, "num_ctx", 0, kMost, context));
    if (context > context_.model.context)
      return invalid_argument("'num_ctx' is {}, and this model's context is {} tokens", context, context_.model.context)
          .about({"num_ctx"});
    std::int64_t keep = 0;  // -1: the whole prompt
    KVASIR_RETURN_IF_ERROR(read_whole(fields, "num_keep", -1, kMost, keep));
    if (keep < 0) return not_done("num_keep", "can be 0 or more here");
    request_.options.protect = keep;
    KVASIR_RETURN_IF_ERROR(refuse_other_constraints(fields, "use 'format' or 'grammar' beside 'options'"));
    // What a machine runs a model with was settled when this server started: num_gpu and the like are not read.
    body_.add_nested("options", fields);
    return {};
  }

  Status read_format() {
    const Json* format = find_field(body_, "format");
    if (format == nullptr || *format == "") return {};
    request_.grammar_field = "format";
    if (*format == "json") {
      request_.grammar = GrammarSource{};
    } else if (format->is_object()) {
      request_.grammar = schema_grammar(*format);
      request_.grammar_path = {"format"};
    } else {
      return wrong_field("format", "\"json\" or a JSON schema");
    }
    return {};
  }

  Status read_think() {
    const Json* think = find_field(body_, "think");
    if (think == nullptr) return {};
    const bool level = *think == "low" || *think == "medium" || *think == "high";
    if (!think->is_boolean() && !level) return wrong_field("think", "true, false, \"low\", \"medium\" or \"high\"");
    request_.options.thinking = level || *think == true ? Thinking::kOn : Thinking::kOff;
    if (request_.options.thinking == Thinking::kOn) request_.thinking_fields.emplace_back("think");
    if (level) set_template_argument(request_.options, "reasoning_effort", *think);
    return {};
  }

  Status read_chat() {
    KVASIR_RETURN_IF_ERROR(read_tools(body_, request_.options));
    if (!request_.options.tools.empty()) request_.tools_path = {"tools"};
    const Json* list = find_field(body_, "messages");
    if (list == nullptr) return {};
    if (!list->is_array() || list->size() > 10'000) return wrong_field("messages", "a list of at most 10000 messages");
    for (std::size_t i = 0; i < list->size(); ++i) KVASIR_RETURN_IF_ERROR(read_message((*list)[i], i));
    return {};
  }

  Status read_message(const Json& said, std::size_t index) {
    const auto wrong = [&](std::string_view needs) {
      return invalid_argument("'messages[{}]' must have {}", index, needs).about({"messages"});
    };
    Message message;
    if (!said.is_object()) return wrong("a 'role', a string");
    const Fields fields(said);
    if (!read_field(fields, "role", message.role).ok() || message.role.empty()) return wrong("a 'role', a string");
    if (message.role != "system" && message.role != "user" && message.role != "assistant" && message.role != "tool")
      return wrong("the role 'system', 'user', 'assistant' or 'tool'");
    if (!read_field(fields, "content", message.content).ok()) return wrong("a 'content', a string");
    if (!read_field(fields, "thinking", message.reasoning).ok()) return wrong("a 'thinking' that is a string");
    if (!read_field(fields, "tool_name", message.name).ok()) return wrong("a 'tool_name' that is a string");
    if (!read_field(fields, "tool_call_id", message.tool_call_id).ok())
      return wrong("a 'tool_call_id' that is a string");
    if (const Json* images = find_field(fields, "images"); images != nullptr && !images->empty())
      return unsupported("'messages[{}].images' are not supported here; omit them", index).about({"messages"});
    if (const Json* calls = find_field(fields, "tool_calls"); calls != nullptr) {
      if (!calls->is_array()) return wrong("'tool_calls' that are a list");
      for (const Json& each : *calls) {
        const Json* function = each.is_object() ? find_field(each, "function") : nullptr;
        ToolCall call;
        if (function == nullptr || !function->is_object() || !read_field(*function, "name", call.name).ok() ||
            !read_field(each, "id", call.id).ok())
          return wrong("'tool_calls' with a 'function' that has a 'name' and 'arguments'");
        const Json* arguments = find_field(*function, "arguments");
        call.arguments = arguments == nullptr ? "{}" : text_of(*arguments);
        message.tool_calls.push_back(std::move(call));
      }
    }
    body_.add_nested("messages", fields);
    request_.options.messages.push_back(std::move(message));
    return {};
  }

  Status read_generate() {
    KVASIR_RETURN_IF_ERROR(refuse_fields(body_, {"images", "template", "context"}));
    std::string prompt, system, suffix;
    bool raw = false;
    KVASIR_RETURN_IF_ERROR(read_field(body_, "prompt", prompt));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "system", system));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "suffix", suffix));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "raw", raw));
    if (prompt.empty() && suffix.empty()) return {};
    if (raw && !system.empty()) return not_done("system", "has no place in a prompt that is 'raw'; omit one of them");
    if (!suffix.empty()) {
      KVASIR_ASSIGN_OR_RETURN(ApiPrompt infill, infill_prompt({.prefix = prompt, .suffix = suffix}, context_.text));
      request_.prompts.push_back(std::move(infill));
    } else if (raw) {
      request_.prompts.push_back({std::move(prompt), {}});
      request_.options.parse_special = true;
    } else {
      request_.chat = true;
      if (!system.empty()) request_.options.messages.push_back({"system", std::move(system)});
      request_.options.messages.push_back({"user", std::move(prompt)});
      return {};
    }
    request_.chat = false;
    return {};
  }

  const Fields body_;
  const ReadContext& context_;
  ApiRequest request_;
};

}  // namespace

// The model stays loaded, which is at least what any time asks for; only 0 asks for less.
Status check_keep_alive(const Fields& body) {
  const Json* time = find_field(body, "keep_alive");
  if (time == nullptr) return {};
  if (!time->is_number() && !time->is_string())
    return wrong_field("keep_alive", R"(a number of seconds, or a duration such as "5m")");
  const bool zero = time->is_number() ? time->get<double>() == 0 : *time == "0" || *time == "0s" || *time == "0m";
  if (zero) return not_done("keep_alive", "cannot unload the model of this server; omit it");
  return {};
}

Result<ApiRequest> read_ollama(const Json& body, bool chat, const ReadContext& context) {
  return OllamaReader(body, chat, context).read();
}

}  // namespace kvasir::server
