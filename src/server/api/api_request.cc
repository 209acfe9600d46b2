#include "server/api/api_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "server/api/api_response.h"
#include "server/fields/grammar_fields.h"
#include "server/fields/json_fields.h"
#include "server/fields/known_fields.h"
#include "server/fields/prompt_fields.h"
#include "server/fields/raw_member.h"
#include "server/fields/sampling_fields.h"
#include "server/fields/tool_fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

constexpr int kMostLevels = 64;
constexpr std::size_t kMostMessages = 10'000;
constexpr std::size_t kMostArguments = 64;
constexpr std::size_t kLongestName = 512;  // of users and salts
constexpr std::int64_t kMostPriority = 1000;

Result<std::string> read_content(const Json& message, std::size_t index) {
  const Json* content = find_field(message, "content");
  if (content == nullptr) return std::string();
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array())
    return invalid_argument("'messages[{}].content' must be a string or a list of parts", index).about({"messages"});
  std::string text;
  for (const Json& part : *content) {
    const Json* type = part.is_object() ? find_field(part, "type") : nullptr;
    if (type == nullptr || *type != "text")
      return make_status(StatusCode::kUnsupported,
                         "'messages[{}].content' has a part of type {}, which is not supported here; text is", index,
                         type != nullptr ? text_of(*type).substr(0, 64) : "none")
          .about({"messages"});
    const Json* said = find_field(part, "text");
    if (said == nullptr || !said->is_string())
      return invalid_argument("'messages[{}].content' has a part without 'text'", index).about({"messages"});
    text += said->get<std::string>();
  }
  return text;
}

Status read_template_arguments(const Fields& body, RequestOptions& options) {
  const Json* arguments = find_field(body, "chat_template_kwargs");
  if (arguments == nullptr) return {};
  if (!arguments->is_object() || arguments->size() > kMostArguments)
    return wrong_field("chat_template_kwargs", "an object of at most 64 variables");
  for (const auto& [name, value] : arguments->items())
    options.template_arguments.emplace_back(name, value.dump(-1, ' ', false, Json::error_handler_t::replace));
  return {};
}

Status read_limits(const Fields& body, ApiRequest& request) {
  for (const char* field : {"max_tokens", "max_completion_tokens"}) {
    if (find_field(body, field) == nullptr) continue;
    KVASIR_RETURN_IF_ERROR(read_whole(body, field, 0, kMostGenerated, request.options.generate.max_tokens));
    request.token_limit_given = true;
  }
  KVASIR_RETURN_IF_ERROR(read_whole(body, "n", 1, kMostSamples, request.n));
  request.options.samples = request.n;
  KVASIR_RETURN_IF_ERROR(read_whole(body, "best_of", 1, kMostSamples, request.options.samples));
  if (request.options.samples < request.n)
    return invalid_argument("'best_of' is {}, less than 'n', which is {}", request.options.samples, request.n)
        .about({"best_of"});
  if (request.options.samples > request.n && request.stream)
    return invalid_argument("'best_of' more than 'n' cannot be streamed: the best are known at the end")
        .about({"best_of"});
  if (const auto all = static_cast<std::size_t>(request.options.samples) * request.prompts.size(); all > kMostTexts)
    return invalid_argument("{} prompts of {} samples each are {} texts; at most {} go together",
                            request.prompts.size(), request.options.samples, all, kMostTexts)
        .about({request.options.samples > request.n ? "best_of" : "n"});
  return {};
}

// In a chat "logprobs" is a flag and "top_logprobs" the number; in a completion "logprobs" is the number.
Status read_logprobs(const Fields& body, ApiRequest& request) {
  int& count = request.options.generate.logprobs;
  if (!request.chat) {
    KVASIR_RETURN_IF_ERROR(read_whole(body, "logprobs", 0, kMostLogprobs, count));
    request.logprobs = count >= 0;
    return {};
  }
  KVASIR_RETURN_IF_ERROR(read_field(body, "logprobs", request.logprobs));
  int top = 0;
  KVASIR_RETURN_IF_ERROR(read_whole(body, "top_logprobs", 0, kMostLogprobs, top));
  if (top > 0 && !request.logprobs)
    return invalid_argument("'top_logprobs' needs 'logprobs': true").about({"top_logprobs"});
  if (request.logprobs) count = top;
  return {};
}

// Reads what else the answer reports, and how a long prompt is cut; as in vLLM.
Status read_reports(const Fields& body, ApiRequest& request) {
  KVASIR_RETURN_IF_ERROR(read_field(body, "return_token_ids", request.return_token_ids));
  KVASIR_RETURN_IF_ERROR(read_whole(body, "prompt_logprobs", 0, kMostLogprobs, request.prompt_logprobs));
  if (request.prompt_logprobs >= 0 && request.stream)
    return invalid_argument("'prompt_logprobs' cannot be streamed; omit 'stream'").about({"prompt_logprobs"});
  KVASIR_RETURN_IF_ERROR(read_whole(body, "truncate_prompt_tokens", -1, kMostGenerated, request.truncate_prompt));
  if (request.truncate_prompt == 0)
    return invalid_argument("'truncate_prompt_tokens' is 0, which would leave no prompt; give 1 or more, or -1")
        .about({"truncate_prompt_tokens"});
  std::string side = "left";
  KVASIR_RETURN_IF_ERROR(read_text(body, "truncation_side", kLongestName, side));
  if (side != "left" && side != "right") return wrong_field("truncation_side", "\"left\" or \"right\"");
  request.keeps_first = side == "right";
  return {};
}

Status read_session(const Fields& body, ApiRequest& request) {
  KVASIR_RETURN_IF_ERROR(read_field(body, "session", request.session));
  if (find_field(body, "session") == nullptr) return {};
  if (!is_session_id(request.session)) return wrong_field("session", "1 to 64 letters, digits, '-' and '_'");
  if (request.prompts.size() > 1)
    return invalid_argument("a session is continued by one prompt, and 'prompt' has {}; give one prompt",
                            request.prompts.size())
        .about({"prompt"});
  if (request.options.samples != 1)
    return invalid_argument("a session is continued by one prompt with one answer; omit 'n' and 'best_of'")
        .about({"session"});
  if (!request.options.tools.empty())
    return invalid_argument("a session takes no tools; omit 'tools', or the session").about({"tools"});
  if (request.options.thinking != Thinking::kAuto || request.options.generate.thought_budget >= 0)
    return invalid_argument("a session thinks as the server's template arguments say; omit the fields about thinking")
        .about({"session"});
  if (!request.options.template_arguments.empty())
    return invalid_argument("a session takes the server's template arguments; omit 'chat_template_kwargs'")
        .about({"chat_template_kwargs"});
  if (request.options.prompt_end != PromptEnd::kAuto)
    return invalid_argument(
               "a session goes on as its conversation stands; omit 'add_generation_prompt' and "
               "'continue_final_message'")
        .about({"continue_final_message"});
  for (const auto& [asked, field] : {std::pair{request.echo, "echo"},
                                     {request.return_token_ids, "return_token_ids"},
                                     {request.prompt_logprobs >= 0, "prompt_logprobs"},
                                     {request.truncate_prompt.has_value(), "truncate_prompt_tokens"}})
    if (asked)
      return invalid_argument("'{}' is about a whole prompt, and a session's is not here; omit it", field)
          .about({field});
  return {};
}

// Whether brackets outside strings nest deeper than kMostLevels. The parser's callback could count levels too, but
// makes the parser visit all values of a container again whenever one of them ends.
bool nests_too_deep(std::string_view text) {
  int level = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      if (++level > kMostLevels) return true;
    } else if (!quoted && (c == ']' || c == '}')) {
      --level;
    }
  }
  return false;
}

Status read_who(const Fields& body, ApiRequest& request) {
  KVASIR_RETURN_IF_ERROR(read_whole(body, "priority", -kMostPriority, kMostPriority, request.options.priority));
  return read_text(body, "cache_salt", kLongestName, request.options.salt);
}

// Extracts the reason from a parser's message such as "... syntax error while parsing value - invalid string:
// ill-formed UTF-8 byte; last read: ...", whose end quotes the body.
std::string parse_reason(std::string_view text) {
  const std::size_t begin = text.find(" - ");
  if (begin == std::string_view::npos) return "";
  const std::string_view reason = text.substr(begin + 3, std::min(text.find(';', begin), text.size()) - begin - 3);
  return fmt::format(": {:.100}", reason);
}

}  // namespace

Result<Json> parse_body(std::string_view body) {
  if (nests_too_deep(body)) return invalid_argument("the body nests deeper than 64 levels");
  try {
    Json json = Json::parse(body);
    if (!json.is_object()) return invalid_argument("the body must be a JSON object");
    return json;
  } catch (const Json::parse_error& error) {
    return invalid_argument("the body is not valid JSON: at byte {} (the first is 1){}", error.byte,
                            parse_reason(error.what()));
  } catch (const Json::exception& error) {
    // "[json.exception.out_of_range.406] number overflow parsing '1e999'"
    const std::string_view text = error.what();
    return invalid_argument("the body is not valid JSON: {:.100}",
                            text.substr(std::min(text.find("] ") + 2, text.size())));
  }
}

namespace {

Result<std::vector<Message>> read_messages(const Fields& body) {
  const Json* list = find_field(body, "messages");
  if (list == nullptr) return invalid_argument("'messages' is missing").about({"messages"});
  if (!list->is_array() || list->empty() || list->size() > kMostMessages)
    return wrong_field("messages", "a list of 1 to 10000 messages");
  std::vector<Message> messages;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Json& each = (*list)[i];
    if (!each.is_object())
      return invalid_argument("'messages[{}]' must be an object with 'role' and 'content'", i).about({"messages"});
    const Json* role = find_field(each, "role");
    if (role == nullptr || !role->is_string())
      return invalid_argument("'messages[{}].role' must be a string", i).about({"messages"});
    if (*role == "function")
      return make_status(StatusCode::kUnsupported,
                         "'messages[{}]' has the role \"function\", which is not supported here; \"tool\" is", i)
          .about({"messages"});
    // The content of an assistant's message may be null, as in an answer without text.
    const bool calls = find_field(each, "tool_calls") != nullptr;
    if (find_field(each, "content") == nullptr && !(*role == "assistant" && (calls || each.contains("content"))))
      return invalid_argument("'messages[{}].content' is missing", i).about({"messages"});
    KVASIR_ASSIGN_OR_RETURN(std::string content, read_content(each, i));
    messages.push_back({*role == "developer" ? "system" : role->get<std::string>(), std::move(content)});
    KVASIR_RETURN_IF_ERROR(read_message_parts(each, i, messages.back()));
  }
  return messages;
}

// Reads add_generation_prompt and continue_final_message, as in vLLM.
Status read_prompt_end(const Fields& body, RequestOptions& options) {
  const bool opens_given = find_field(body, "add_generation_prompt") != nullptr;
  const bool continues_given = find_field(body, "continue_final_message") != nullptr;
  bool opens = true, continues = false;
  KVASIR_RETURN_IF_ERROR(read_field(body, "add_generation_prompt", opens));
  KVASIR_RETURN_IF_ERROR(read_field(body, "continue_final_message", continues));
  if (opens_given && opens && continues)
    return invalid_argument(
               "'add_generation_prompt' opens a new answer, and 'continue_final_message' goes on with the last "
               "message; "
               "omit one of them")
        .about({"continue_final_message"});
  if (continues) {
    options.prompt_end = PromptEnd::kContinue;
  } else if (opens_given || continues_given) {
    options.prompt_end = opens ? PromptEnd::kOpen : PromptEnd::kClosed;
  }
  return {};
}

}  // namespace

bool is_session_id(std::string_view id) {
  return !id.empty() && id.size() <= 64 && std::ranges::all_of(id, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

void restore_order(std::string_view body, ApiRequest& request) {
  if (!request.grammar_path.empty() && request.grammar) request.grammar->text = raw_member(body, request.grammar_path);
  if (request.tools_path.empty()) return;
  const std::string_view tools = raw_member(body, request.tools_path);
  request.options.tools =
      request.tools_schema != nullptr ? chat_tools(tools, request.tools_schema) : std::string(tools);
}

Result<ApiRequest> read_prompts(const Fields& body, bool chat) {
  ApiRequest request;
  request.chat = chat;
  KVASIR_RETURN_IF_ERROR(refuse_known(body, chat));
  KVASIR_RETURN_IF_ERROR(read_field(body, "model", request.model));
  if (!chat) {
    KVASIR_RETURN_IF_ERROR(read_prompts(body, "prompt", kMostPrompts, request.prompts));
    request.options.parse_special = true;
    KVASIR_RETURN_IF_ERROR(read_field(body, "parse_special", request.options.parse_special));
    return request;
  }
  KVASIR_ASSIGN_OR_RETURN(request.options.messages, read_messages(body));
  KVASIR_RETURN_IF_ERROR(read_template_arguments(body, request.options));
  KVASIR_RETURN_IF_ERROR(read_tools(body, request.options));
  if (!request.options.tools.empty()) request.tools_path = {"tools"};
  KVASIR_RETURN_IF_ERROR(read_thinking(body, request));
  KVASIR_RETURN_IF_ERROR(read_prompt_end(body, request.options));
  return request;
}

Result<ApiRequest> read_request(const Fields& body, bool chat, const SamplingOptions& sampling) {
  KVASIR_ASSIGN_OR_RETURN(ApiRequest request, read_prompts(body, chat));
  KVASIR_RETURN_IF_ERROR(read_field(body, "stream", request.stream));
  if (const Json* options = find_field(body, "stream_options"); options != nullptr) {
    if (!options->is_object()) return wrong_field("stream_options", "an object");
    const Fields fields(*options);
    if (const Status read = read_field(fields, "include_usage", request.include_usage); !read.ok())
      return wrong_field("stream_options.include_usage", "true or false");
    if (const Status read = read_field(fields, "continuous_usage_stats", request.usage_in_chunks); !read.ok())
      return wrong_field("stream_options.continuous_usage_stats", "true or false");
    request.usage_in_chunks = request.usage_in_chunks && request.include_usage;
    body.add_nested("stream_options", fields);
  }
  KVASIR_RETURN_IF_ERROR(read_field(body, "echo", request.echo));
  if (!chat) request.options.generate.max_tokens = 16;  // the API's default
  KVASIR_RETURN_IF_ERROR(read_limits(body, request));
  KVASIR_RETURN_IF_ERROR(read_sampling(body, sampling, request.options.generate.sampling));
  KVASIR_RETURN_IF_ERROR(read_endings(body, request.options.generate));
  KVASIR_RETURN_IF_ERROR(read_field(body, "draft", request.options.generate.draft));
  KVASIR_RETURN_IF_ERROR(read_logprobs(body, request));
  KVASIR_RETURN_IF_ERROR(read_reports(body, request));
  KVASIR_RETURN_IF_ERROR(read_who(body, request));
  KVASIR_RETURN_IF_ERROR(read_kv(body, request.options));
  KVASIR_RETURN_IF_ERROR(read_kv_hints(body, request.options, request.hints));
  KVASIR_RETURN_IF_ERROR(read_session(body, request));
  KVASIR_RETURN_IF_ERROR(read_grammar_fields(body, request));
  KVASIR_RETURN_IF_ERROR(check_hints(body));
  request.names_tier = find_field(body, "service_tier") != nullptr;
  GenerateOptions& generate = request.options.generate;
  const bool echoes_logprobs = request.echo && request.logprobs && !chat;
  if (echoes_logprobs && request.stream)
    return invalid_argument("'echo' with 'logprobs' cannot be streamed; omit one of them").about({"echo"});
  if (echoes_logprobs) generate.prompt_logprobs = generate.logprobs;
  if (request.prompt_logprobs >= 0)
    generate.prompt_logprobs = std::max(generate.prompt_logprobs, request.prompt_logprobs);
  if (generate.prompt_logprobs >= 0) request.options.bypass = true;  // a cached prefix has no log-probabilities
  // best_of chooses by the mean log-probability; token ids are reported with it.
  if (request.options.samples > request.n || request.return_token_ids)
    generate.logprobs = std::max(generate.logprobs, 0);
  KVASIR_RETURN_IF_ERROR(refuse_other_constraints(body, "use 'response_format' or 'structured_outputs'"));
  request.ignored = body.unknown();
  return request;
}

}  // namespace kvasir::server
