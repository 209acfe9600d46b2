#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "server/dialects/anthropic.h"
#include "server/dialects/fields.h"
#include "server/fields/grammar_fields.h"
#include "server/fields/json_fields.h"
#include "server/fields/sampling_fields.h"
#include "server/fields/tool_fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

template <class... Args>
Status wrong_turn(fmt::format_string<Args...> format, Args&&... args) {
  return invalid_argument(format, std::forward<Args>(args)...).about({"messages"});
}

class AnthropicReader {
  static constexpr std::size_t kMostTurns = 10'000;
  static constexpr std::size_t kMostTools = 256;

 public:
  AnthropicReader(const Json& body, const ReadContext& context) : body_(body), context_(context) {}

  Result<ApiRequest> read(bool counts) && {
    request_.chat = true;
    KVASIR_RETURN_IF_ERROR(read_version());
    KVASIR_RETURN_IF_ERROR(refuse_fields(body_, {"container", "mcp_servers", "context_management"}));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "model", request_.model));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "stream", request_.stream));
    KVASIR_RETURN_IF_ERROR(read_limit(counts));
    KVASIR_RETURN_IF_ERROR(read_bounded_stops(body_, "stop_sequences", request_.options.generate.stop));
    KVASIR_RETURN_IF_ERROR(read_sampling_fields());
    KVASIR_RETURN_IF_ERROR(read_names());
    KVASIR_RETURN_IF_ERROR(read_kv(body_, request_.options));
    KVASIR_RETURN_IF_ERROR(read_cache_control(body_));
    KVASIR_RETURN_IF_ERROR(read_thinking_object(body_, request_));
    settle_thinking(request_.options);
    KVASIR_RETURN_IF_ERROR(read_output());
    KVASIR_RETURN_IF_ERROR(read_grammar_fields(body_, request_));
    KVASIR_RETURN_IF_ERROR(read_tools());
    KVASIR_RETURN_IF_ERROR(read_system());
    KVASIR_RETURN_IF_ERROR(read_turns());
    if (!context_.http.field("anthropic-beta").empty()) request_.ignored.emplace_back("anthropic-beta");
    KVASIR_RETURN_IF_ERROR(refuse_other_constraints(body_, "use 'output_config.format' or 'structured_outputs'"));
    for (std::string& name : body_.unknown()) request_.ignored.push_back(std::move(name));
    return std::move(request_);
  }

 private:
  Status read_version() const {
    const std::string_view version = context_.http.field("anthropic-version");
    if (version.empty() || version == "2023-06-01" || version == "2026-10-21") return {};
    return invalid_argument(
               "the header 'anthropic-version' is '{:.40}'; here it may be 2023-06-01 or 2026-10-21, or absent",
               version)
        .about({"anthropic-version"});
  }

  Status read_limit(bool counts) {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    request_.token_limit_given = find_field(body_, "max_tokens") != nullptr;
    if (!request_.token_limit_given && !counts)
      return invalid_argument("'max_tokens' is missing; give the most tokens to generate").about({"max_tokens"});
    return read_whole(body_, "max_tokens", 1, kMost, request_.options.generate.max_tokens);
  }

  Status read_sampling_fields() {
    SamplingOptions& sampling = request_.options.generate.sampling;
    sampling = usual_sampling(body_, context_.sampling);
    KVASIR_RETURN_IF_ERROR(read_field(body_, "temperature", sampling.temperature));
    KVASIR_RETURN_IF_ERROR(read_field(body_, "top_p", sampling.top_p));
    return read_whole(body_, "top_k", 0, 1 << 30, sampling.top_k);
  }

  // Fields for the client's own records.
  Status read_names() {
    if (const Json* metadata = find_field(body_, "metadata"); metadata != nullptr) {
      if (!metadata->is_object()) return wrong_field("metadata", "an object");
      const Fields fields(*metadata);
      std::string user;
      KVASIR_RETURN_IF_ERROR(read_text(fields, "user_id", 512, user));
      body_.add_nested("metadata", fields);
    }
    std::string tier;
    KVASIR_RETURN_IF_ERROR(read_field(body_, "service_tier", tier));
    if (tier.empty() || tier == "auto" || tier == "standard_only") return {};
    return wrong_field("service_tier", "'auto' or 'standard_only'");
  }

  // Pins the prefix for the longest time that any mark asks for.
  Status read_cache_control(const Fields& holder) {
    const Json* mark = find_field(holder, "cache_control");
    if (mark == nullptr) return {};
    const Json* type = mark->is_object() ? find_field(*mark, "type") : nullptr;
    if (type == nullptr || *type != "ephemeral")
      return wrong_field("cache_control", R"({"type": "ephemeral"}, with "ttl": "5m" or "1h")");
    const Json* ttl = find_field(*mark, "ttl");
    if (ttl != nullptr && *ttl != "5m" && *ttl != "1h") return wrong_field("cache_control.ttl", "'5m' or '1h'");
    request_.options.pin = true;
    request_.options.ttl = std::max(request_.options.ttl, ttl != nullptr && *ttl == "1h" ? 3600.0 : 300.0);
    return {};
  }

  Status read_output() {
    const Json* format = find_field(body_, "output_format");
    bool in_config = false;
    if (const Json* config = find_field(body_, "output_config"); config != nullptr) {
      if (!config->is_object()) return wrong_field("output_config", "an object");
      const Fields fields(*config);
      if (const Json* given = find_field(fields, "format"); given != nullptr) {
        format = given;
        in_config = true;
      }
      body_.add_nested("output_config", fields);
    }
    if (format == nullptr) return {};
    const Json* schema = format->is_object() ? find_field(*format, "schema") : nullptr;
    if (schema == nullptr || format->value("type", Json()) != "json_schema")
      return wrong_field("output_config.format", R"({"type": "json_schema", "schema": {...}})");
    request_.grammar = schema_grammar(*schema);
    request_.grammar_path = {"output_format", "schema"};
    if (in_config) request_.grammar_path = {"output_config", "format", "schema"};
    request_.grammar_field = "output_config.format";
    return {};
  }

  Status read_tools() {
    const Json* choice = find_field(body_, "tool_choice");
    std::string kind = "auto";
    if (choice != nullptr) {
      if (!choice->is_object() || !read_field(*choice, "type", kind).ok())
        return wrong_field("tool_choice", R"({"type": "auto", "any", "tool" or "none"})");
      bool alone = false;
      KVASIR_RETURN_IF_ERROR(read_field(*choice, "disable_parallel_tool_use", alone));
      request_.options.parallel_tool_calls = !alone;
      if (kind == "any") {
        request_.options.tool_choice = ToolChoice::kRequired;
      } else if (kind == "tool") {
        request_.options.tool_choice = ToolChoice::kNamed;
        if (!read_field(*choice, "name", request_.options.tool_name).ok() || request_.options.tool_name.empty())
          return wrong_field("tool_choice", R"({"type": "tool", "name": ...})");
      } else if (kind != "auto" && kind != "none") {
        return wrong_field("tool_choice", R"({"type": "auto", "any", "tool" or "none"})");
      }
      if ((kind == "any" || kind == "tool") && find_field(body_, "tools") == nullptr)
        return invalid_argument("'tool_choice' needs 'tools'").about({"tool_choice"});
    }
    const Json* tools = find_field(body_, "tools");
    if (tools == nullptr) return {};
    if (!tools->is_array() || tools->size() > kMostTools) return wrong_field("tools", "a list of at most 256 tools");
    for (const Json& tool : *tools) {
      if (!tool.is_object()) return wrong_field("tools", "a list of objects with 'name' and 'input_schema'");
      const Fields fields(tool);
      const Json* type = find_field(fields, "type");
      if (type != nullptr && *type != "custom")
        return not_done("tools",
                        fmt::format("has one of type {:.60}, and only 'custom' is supported here", text_of(*type)));
      const Json* name = find_field(fields, "name");
      const Json* schema = find_field(fields, "input_schema");
      if (name == nullptr || !name->is_string() || schema == nullptr || !schema->is_object())
        return wrong_field("tools", "a list of objects with 'name' and 'input_schema'");
      KVASIR_RETURN_IF_ERROR(read_cache_control(fields));
      find_field(fields, "description");
      body_.add_nested("tools", fields);
    }
    if (kind == "none" || tools->empty()) return {};
    request_.tools_path = {"tools"};
    request_.tools_schema = "input_schema";
    request_.options.tools = chat_tools(text_of(*tools), "input_schema");
    return {};
  }

  Status read_system() {
    const Json* system = find_field(body_, "system");
    if (system == nullptr) return {};
    std::string text;
    if (system->is_string()) {
      text = system->get<std::string>();
    } else if (system->is_array()) {
      for (const Json& block : *system) {
        const Json* said =
            block.is_object() && block.value("type", Json()) == "text" ? find_field(block, "text") : nullptr;
        if (said == nullptr || !said->is_string())
          return wrong_field("system", "a string or a list of blocks of type 'text'");
        KVASIR_RETURN_IF_ERROR(read_cache_control(block));
        text += said->get_ref<const std::string&>();
      }
    } else {
      return wrong_field("system", "a string or a list of blocks of type 'text'");
    }
    if (!text.empty()) request_.options.messages.push_back({"system", std::move(text)});
    return {};
  }

  Status read_turns() {
    const Json* list = find_field(body_, "messages");
    if (list == nullptr) return invalid_argument("'messages' is missing").about({"messages"});
    if (!list->is_array() || list->empty() || list->size() > kMostTurns)
      return wrong_field("messages", "a list of 1 to 10000 messages");
    for (std::size_t i = 0; i < list->size(); ++i) {
      const Json& turn = (*list)[i];
      const Json* role = turn.is_object() ? find_field(turn, "role") : nullptr;
      if (role == nullptr || (*role != "user" && *role != "assistant"))
        return wrong_turn("'messages[{}].role' must be 'user' or 'assistant'", i);
      const Json* content = find_field(turn, "content");
      if (content == nullptr) return wrong_turn("'messages[{}].content' is missing", i);
      if (content->is_string()) {
        request_.options.messages.push_back({role->get<std::string>(), content->get<std::string>()});
        continue;
      }
      if (!content->is_array()) return wrong_turn("'messages[{}].content' must be a string or a list of blocks", i);
      KVASIR_RETURN_IF_ERROR(*role == "user" ? read_user(*content, i) : read_assistant(*content, i));
    }
    return {};
  }

  // Returns the type of a block; "" for a value that is none.
  static std::string type_of(const Json& block) {
    const Json* type = block.is_object() ? find_field(block, "type") : nullptr;
    return type != nullptr && type->is_string() ? type->get<std::string>() : "";
  }

  static Status other_block(const std::string& type, std::size_t turn, std::string_view known) {
    return unsupported("'messages[{}].content' has a block of type '{:.60}', which is not supported here; {} are", turn,
                       type, known)
        .about({"messages"});
  }

  // Reads what all blocks have besides their content.
  Status read_rest(const Fields& block) {
    find_field(block, "type");
    find_field(block, "signature");  // thoughts have none here
    if (const Json* citations = find_field(block, "citations"); citations != nullptr && !citations->empty())
      return unsupported("'citations' are not supported here; omit them").about({"messages"});
    KVASIR_RETURN_IF_ERROR(read_cache_control(block));
    body_.add_nested("messages.content", block);
    return {};
  }

  static Result<std::string> text_in(const Fields& block, const char* field, std::size_t turn) {
    const Json* text = find_field(block, field);
    if (text == nullptr || !text->is_string())
      return wrong_turn("'messages[{}].content' has a block without the text '{}'", turn, field);
    return text->get<std::string>();
  }

  Status read_user(const Json& blocks, std::size_t turn) {
    std::string said;
    bool spoke = false;
    const auto flush = [&] {
      if (std::exchange(spoke, false)) request_.options.messages.push_back({"user", std::exchange(said, {})});
    };
    for (const Json& block : blocks) {
      const std::string type = type_of(block);
      const Fields fields(block);
      if (type == "text") {
        KVASIR_ASSIGN_OR_RETURN(const std::string text, text_in(fields, "text", turn));
        said += text;
        spoke = true;
      } else if (type == "tool_result") {
        flush();
        KVASIR_RETURN_IF_ERROR(read_tool_result(fields, turn));
      } else {
        return other_block(type, turn, "'text' and 'tool_result'");
      }
      KVASIR_RETURN_IF_ERROR(read_rest(fields));
    }
    if (blocks.empty()) return wrong_turn("'messages[{}].content' is empty", turn);
    flush();
    return {};
  }

  Status read_tool_result(const Fields& block, std::size_t turn) {
    Message result{"tool", {}};
    KVASIR_ASSIGN_OR_RETURN(result.tool_call_id, text_in(block, "tool_use_id", turn));
    if (const auto call = calls_.find(result.tool_call_id); call != calls_.end()) result.name = call->second;
    // No template has a place for this flag, so the text says it.
    if (const Json* failed = find_field(block, "is_error"); failed != nullptr && *failed == true)
      result.content = "Error: ";
    if (const Json* content = find_field(block, "content"); content != nullptr) {
      if (content->is_string()) {
        result.content += content->get_ref<const std::string&>();
      } else if (content->is_array()) {
        for (const Json& part : *content) {
          if (type_of(part) != "text") return other_block(type_of(part), turn, "in a 'tool_result' those of 'text'");
          KVASIR_ASSIGN_OR_RETURN(const std::string text, text_in(part, "text", turn));
          result.content += text;
        }
      } else {
        return wrong_turn("'messages[{}].content' has a 'tool_result' whose content is no text", turn);
      }
    }
    request_.options.messages.push_back(std::move(result));
    return {};
  }

  Status read_assistant(const Json& blocks, std::size_t turn) {
    Message message{"assistant", {}};
    for (const Json& block : blocks) {
      const std::string type = type_of(block);
      const Fields fields(block);
      if (type == "text") {
        KVASIR_ASSIGN_OR_RETURN(const std::string text, text_in(fields, "text", turn));
        message.content += text;
      } else if (type == "thinking") {
        KVASIR_ASSIGN_OR_RETURN(const std::string text, text_in(fields, "thinking", turn));
        message.reasoning += text;
      } else if (type == "tool_use") {
        ToolCall call;
        KVASIR_ASSIGN_OR_RETURN(call.id, text_in(fields, "id", turn));
        KVASIR_ASSIGN_OR_RETURN(call.name, text_in(fields, "name", turn));
        const Json* input = find_field(fields, "input");
        if (input == nullptr || !input->is_object())
          return wrong_turn("'messages[{}].content' has a 'tool_use' whose 'input' is no object", turn);
        call.arguments = text_of(*input);
        calls_[call.id] = call.name;
        message.tool_calls.push_back(std::move(call));
      } else {
        return other_block(type, turn, "'text', 'thinking' and 'tool_use'");
      }
      KVASIR_RETURN_IF_ERROR(read_rest(fields));
    }
    request_.options.messages.push_back(std::move(message));
    return {};
  }

  const Fields body_;
  const ReadContext& context_;
  ApiRequest request_;
  std::map<std::string, std::string> calls_;  // name of each call, by its id
};

}  // namespace

Result<ApiRequest> read_anthropic(const Json& body, const ReadContext& context, bool counts) {
  return AnthropicReader(body, context).read(counts);
}

}  // namespace kvasir::server
