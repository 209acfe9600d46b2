#include "server/api_request.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/status.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

constexpr int kMostLevels = 64;
constexpr std::size_t kMostStops = 16;
constexpr std::size_t kMostMessages = 10'000;

Status wrong(const char* field, std::string_view needs) {
  return invalid_argument("'{}' must be {}", field, needs).about({field});
}

// Returns the field's value; null if it is absent or null.
const Json* find(const Json& body, const char* field) {
  const auto found = body.find(field);
  return found == body.end() || found->is_null() ? nullptr : &*found;
}

Status read(const Json& body, const char* field, bool& value) {
  const Json* found = find(body, field);
  if (found == nullptr) return {};
  if (!found->is_boolean()) return wrong(field, "true or false");
  value = found->get<bool>();
  return {};
}

Status read(const Json& body, const char* field, std::string& value) {
  const Json* found = find(body, field);
  if (found == nullptr) return {};
  if (!found->is_string()) return wrong(field, "a string");
  value = found->get<std::string>();
  return {};
}

Status read(const Json& body, const char* field, float& value) {
  const Json* found = find(body, field);
  if (found == nullptr) return {};
  if (!found->is_number()) return wrong(field, "a number");
  value = found->get<float>();
  return {};
}

// Whole numbers may be written as 5.0, as some clients do.
std::optional<std::int64_t> whole(const Json& value) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) return {};
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return {};
  const double number = value.get<double>();
  if (number != std::floor(number) || std::abs(number) > 9e15) return {};
  return static_cast<std::int64_t>(number);
}

template <class Integer>
Status read_whole(const Json& body, const char* field, std::int64_t least, std::int64_t most, Integer& value) {
  const Json* found = find(body, field);
  if (found == nullptr) return {};
  const std::optional<std::int64_t> number = whole(*found);
  if (!number || *number < least || *number > most)
    return invalid_argument("'{}' must be a whole number from {} to {}", field, least, most).about({field});
  value = static_cast<Integer>(*number);
  return {};
}

Status read_seed(const Json& body, std::uint64_t& seed) {
  const Json* found = find(body, "seed");
  if (found == nullptr) return {};
  if (found->is_number_unsigned()) {
    seed = found->get<std::uint64_t>();
    return {};
  }
  const std::optional<std::int64_t> number = whole(*found);
  if (!number) return wrong("seed", "a whole number");
  seed = static_cast<std::uint64_t>(*number);
  return {};
}

Status read_stops(const Json& body, std::vector<std::string>& stops) {
  const Json* found = find(body, "stop");
  if (found == nullptr) return {};
  const Json list = found->is_string() ? Json::array({*found}) : *found;
  if (!list.is_array() || list.size() > kMostStops) return wrong("stop", "a string or a list of at most 16 strings");
  for (const Json& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty())
      return wrong("stop", "a string or a list of strings that are not empty");
    stops.push_back(stop.get<std::string>());
  }
  return {};
}

// Refuses what would change the answer and cannot be honoured.
Status refuse_unsupported(const Json& body) {
  for (const char* field : {"tools", "functions", "audio", "modalities", "logit_bias", "suffix", "response_format"}) {
    const Json* found = find(body, field);
    if (found == nullptr || (found->is_structured() && found->empty())) continue;
    if (std::string_view(field) == "response_format" && found->is_object() && found->value("type", Json()) == "text")
      continue;
    if (std::string_view(field) == "modalities" && *found == Json::array({"text"})) continue;
    return make_status(StatusCode::kUnsupported, "'{}' is not supported here; omit it", field).about({field});
  }
  return {};
}

Result<std::string> read_content(const Json& message, std::size_t index) {
  const Json* content = find(message, "content");
  if (content == nullptr) return std::string();
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array())
    return invalid_argument("'messages[{}].content' must be a string or a list of parts", index).about({"messages"});
  std::string text;
  for (const Json& part : *content) {
    const Json* type = part.is_object() ? find(part, "type") : nullptr;
    if (type == nullptr || *type != "text")
      return make_status(StatusCode::kUnsupported,
                         "'messages[{}].content' has a part that is no text, which is not "
                         "supported here",
                         index)
          .about({"messages"});
    const Json* said = find(part, "text");
    if (said == nullptr || !said->is_string())
      return invalid_argument("'messages[{}].content' has a part without 'text'", index).about({"messages"});
    text += said->get<std::string>();
  }
  return text;
}

Status read_prompt(const Json& body, RequestOptions& options) {
  const Json* prompt = find(body, "prompt");
  if (prompt == nullptr) return invalid_argument("'prompt' is missing").about({"prompt"});
  const Json* one = prompt;
  if (prompt->is_array() && prompt->size() == 1 && prompt->front().is_structured()) one = &prompt->front();
  if (prompt->is_array() && prompt->size() == 1 && prompt->front().is_string()) one = &prompt->front();
  if (one->is_string()) {
    options.prompt = one->get<std::string>();
    return {};
  }
  if (!one->is_array()) return wrong("prompt", "a string or a list of token ids");
  for (const Json& token : *one) {
    const std::optional<std::int64_t> id = whole(token);
    if (!id || *id < 0 || *id > std::numeric_limits<std::int32_t>::max())
      return wrong("prompt", "one string or one list of token ids; send several prompts as several requests");
    options.tokens.push_back(static_cast<std::int32_t>(*id));
  }
  return {};
}

Status read_sampling(const Json& body, SamplingOptions& sampling) {
  // The API's own defaults: the distribution as the model gives it.
  sampling.temperature = 1;
  sampling.top_k = 0;
  sampling.top_p = 1;
  sampling.min_p = 0;
  KVASIR_RETURN_IF_ERROR(read(body, "temperature", sampling.temperature));
  KVASIR_RETURN_IF_ERROR(read(body, "top_p", sampling.top_p));
  KVASIR_RETURN_IF_ERROR(read(body, "min_p", sampling.min_p));
  KVASIR_RETURN_IF_ERROR(read_whole(body, "top_k", -1, 1 << 30, sampling.top_k));
  if (sampling.top_k < 0) sampling.top_k = 0;  // -1: all, as other servers have it
  KVASIR_RETURN_IF_ERROR(read(body, "frequency_penalty", sampling.frequency_penalty));
  KVASIR_RETURN_IF_ERROR(read(body, "presence_penalty", sampling.presence_penalty));
  KVASIR_RETURN_IF_ERROR(read(body, "repetition_penalty", sampling.repetition_penalty));
  return read_seed(body, sampling.seed);
}

Status read_limits(const Json& body, ApiRequest& request) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  for (const char* field : {"max_tokens", "max_completion_tokens"}) {
    if (find(body, field) == nullptr) continue;
    KVASIR_RETURN_IF_ERROR(read_whole(body, field, 0, kMost, request.options.generate.max_tokens));
    request.token_limit_given = true;
  }
  int best_of = 0;
  KVASIR_RETURN_IF_ERROR(read_whole(body, "n", 1, 64, request.options.samples));
  KVASIR_RETURN_IF_ERROR(read_whole(body, "best_of", 1, 64, best_of));
  if (best_of != 0 && best_of != request.options.samples)
    return make_status(StatusCode::kUnsupported, "'best_of' other than 'n' is not supported yet; omit it")
        .about({"best_of"});
  return {};
}

// In a chat "logprobs" is a flag and "top_logprobs" a number; otherwise "logprobs" is the number.
Status read_logprobs(const Json& body, ApiRequest& request) {
  int& count = request.options.generate.logprobs;
  if (!request.chat) {
    KVASIR_RETURN_IF_ERROR(read_whole(body, "logprobs", 0, 20, count));
    request.logprobs = count >= 0;
    return {};
  }
  KVASIR_RETURN_IF_ERROR(read(body, "logprobs", request.logprobs));
  int top = 0;
  KVASIR_RETURN_IF_ERROR(read_whole(body, "top_logprobs", 0, 20, top));
  if (top > 0 && !request.logprobs)
    return invalid_argument("'top_logprobs' needs 'logprobs': true").about({"top_logprobs"});
  if (request.logprobs) count = top;
  return {};
}

Status read_kv(const Json& body, RequestOptions& options) {
  const Json* kv = find(body, "kv");
  if (kv == nullptr) return {};
  if (!kv->is_object()) return wrong("kv", "an object");
  const Json* policy = find(*kv, "policy");
  if (policy != nullptr && !policy->is_string())
    return invalid_argument("'kv.policy' must be a string").about({"kv.policy"});
  if (policy != nullptr) options.policy = policy->get<std::string>();
  const Json* inspect = find(*kv, "inspect");
  if (inspect != nullptr && !inspect->is_boolean())
    return invalid_argument("'kv.inspect' must be true or false").about({"kv.inspect"});
  options.inspect = inspect != nullptr && inspect->get<bool>();
  return {};
}

}  // namespace

Result<Json> parse_body(std::string_view body) {
  try {
    Json json = Json::parse(body, [](int depth, Json::parse_event_t, Json&) {
      if (depth > kMostLevels) throw std::length_error("the body nests deeper than 64 levels");
      return true;
    });
    if (!json.is_object()) return invalid_argument("the body must be a JSON object");
    return json;
  } catch (const Json::parse_error& error) {
    return invalid_argument("the body is not valid JSON: at byte {}", error.byte);
  } catch (const Json::exception& error) {
    return invalid_argument("the body is not valid JSON: {}", error.what());
  } catch (const std::length_error& error) {
    return invalid_argument("{}", error.what());
  }
}

Result<std::vector<Message>> read_messages(const Json& body) {
  const Json* list = find(body, "messages");
  if (list == nullptr) return invalid_argument("'messages' is missing").about({"messages"});
  if (!list->is_array() || list->empty() || list->size() > kMostMessages)
    return wrong("messages", "a list of 1 to 10000 messages");
  std::vector<Message> messages;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const Json& each = (*list)[i];
    const Json* role = each.is_object() ? find(each, "role") : nullptr;
    if (role == nullptr || !role->is_string())
      return invalid_argument("'messages[{}].role' must be a string", i).about({"messages"});
    if (find(each, "tool_calls") != nullptr || *role == "tool" || *role == "function")
      return make_status(StatusCode::kUnsupported, "'messages[{}]' is about tools, which are not supported here", i)
          .about({"messages"});
    KVASIR_ASSIGN_OR_RETURN(std::string content, read_content(each, i));
    messages.push_back({*role == "developer" ? "system" : role->get<std::string>(), std::move(content)});
  }
  return messages;
}

Result<ApiRequest> read_request(const Json& body, bool chat) {
  ApiRequest request;
  request.chat = chat;
  KVASIR_RETURN_IF_ERROR(refuse_unsupported(body));
  KVASIR_RETURN_IF_ERROR(read(body, "model", request.model));
  KVASIR_RETURN_IF_ERROR(read(body, "stream", request.stream));
  if (const Json* options = find(body, "stream_options"); options != nullptr) {
    if (!options->is_object()) return wrong("stream_options", "an object");
    KVASIR_RETURN_IF_ERROR(read(*options, "include_usage", request.include_usage));
  }
  if (chat) {
    KVASIR_ASSIGN_OR_RETURN(request.options.messages, read_messages(body));
  } else {
    KVASIR_RETURN_IF_ERROR(read_prompt(body, request.options));
    KVASIR_RETURN_IF_ERROR(read(body, "echo", request.echo));
    if (request.echo && request.options.prompt.empty())
      return make_status(StatusCode::kUnsupported, "'echo' needs a prompt of text").about({"echo"});
    request.options.generate.max_tokens = 16;  // the API's default
  }
  KVASIR_RETURN_IF_ERROR(read_limits(body, request));
  KVASIR_RETURN_IF_ERROR(read_sampling(body, request.options.generate.sampling));
  KVASIR_RETURN_IF_ERROR(read_stops(body, request.options.generate.stop));
  KVASIR_RETURN_IF_ERROR(read_logprobs(body, request));
  KVASIR_RETURN_IF_ERROR(read(body, "ignore_eos", request.options.generate.ignore_eos));
  KVASIR_RETURN_IF_ERROR(read_kv(body, request.options));
  return request;
}

}  // namespace kvasir::server
