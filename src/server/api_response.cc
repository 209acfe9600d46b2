#include "server/api_response.h"

#include <nlohmann/json.hpp>

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

// Messages repeat what a client sent, which may be large.
std::string shortened(std::string_view message) {
  constexpr std::size_t kMost = 1000;
  return message.size() <= kMost ? std::string(message) : std::string(message.substr(0, kMost)) + " ...";
}

Json bytes_of(std::string_view text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json choice_of(const TokenChoice& choice) {
  return {{"token", choice.bytes}, {"logprob", choice.log_probability}, {"bytes", bytes_of(choice.bytes)}};
}

Json chat_logprobs(const std::vector<GeneratedToken>& tokens) {
  Json content = Json::array();
  for (const GeneratedToken& token : tokens) {
    Json each = choice_of(token.token);
    each["top_logprobs"] = Json::array();
    for (const TokenChoice& choice : token.likeliest) each["top_logprobs"].push_back(choice_of(choice));
    content.push_back(std::move(each));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json completion_logprobs(const std::vector<GeneratedToken>& tokens) {
  Json all = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  std::size_t offset = 0;
  for (const GeneratedToken& token : tokens) {
    all["tokens"].push_back(token.token.bytes);
    all["token_logprobs"].push_back(token.token.log_probability);
    Json top = Json::object();
    for (const TokenChoice& choice : token.likeliest) top[choice.bytes] = choice.log_probability;
    all["top_logprobs"].push_back(std::move(top));
    all["text_offset"].push_back(offset);
    offset += token.token.bytes.size();
  }
  return all;
}

Json logprobs_of(const AnswerHead& head, const GenerateResult& result, bool logprobs) {
  if (!logprobs) return nullptr;
  return head.chat ? chat_logprobs(result.choices) : completion_logprobs(result.choices);
}

Json object_of(const AnswerHead& head, std::string_view object) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"choices", Json::array()}};
}

Json chunk_of(const AnswerHead& head, int sample, Json content) {
  Json chunk = object_of(head, head.chat ? "chat.completion.chunk" : "text_completion");
  content["index"] = sample;
  content.emplace("finish_reason", nullptr);
  content.emplace("logprobs", nullptr);
  chunk["choices"].push_back(std::move(content));
  return chunk;
}

}  // namespace

std::string_view api_finish_reason(FinishReason reason) {
  return reason == FinishReason::kEnd || reason == FinishReason::kStop ? "stop" : "length";
}

Json kv_of(const GenerateResult& result) {
  const KvReport& kv = result.kv;
  return {{"policy", kv.policy}, {"codec", kv.codec},
          {"seen", kv.seen},     {"kept", kv.kept},
          {"bytes", kv.bytes},   {"bytes_peak", kv.bytes_peak},
          {"seed", result.seed}, {"finish_reason", finish_reason_name(result.finish_reason)}};
}

Json usage_of(std::int64_t prompt_tokens, std::int64_t completion_tokens) {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", 0}}}};
}

Json answer_of(const AnswerHead& head, const std::vector<GenerateResult>& results, std::string_view prefix,
               bool logprobs) {
  Json answer = object_of(head, head.chat ? "chat.completion" : "text_completion");
  std::int64_t tokens = 0;
  for (std::size_t sample = 0; sample < results.size(); ++sample) {
    const GenerateResult& result = results[sample];
    tokens += result.tokens;
    Json choice = {{"index", sample},
                   {"finish_reason", api_finish_reason(result.finish_reason)},
                   {"logprobs", logprobs_of(head, result, logprobs)}};
    const std::string text = std::string(prefix) + result.text;
    if (head.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
    } else {
      choice["text"] = text;
    }
    if (results.size() > 1) choice["kv"] = kv_of(result);
    answer["choices"].push_back(std::move(choice));
  }
  answer["usage"] = usage_of(results.front().prompt_tokens, tokens);
  answer["kv"] = kv_of(results.front());
  return answer;
}

Json first_chunk(const AnswerHead& head, int sample) {
  return head.chat ? chunk_of(head, sample, {{"delta", {{"role", "assistant"}, {"content", ""}}}})
                   : chunk_of(head, sample, {{"text", ""}});
}

Json text_chunk(const AnswerHead& head, int sample, std::string_view text) {
  return head.chat ? chunk_of(head, sample, {{"delta", {{"content", text}}}})
                   : chunk_of(head, sample, {{"text", text}});
}

Json last_chunk(const AnswerHead& head, int sample, const GenerateResult& result, bool logprobs) {
  Json content = {{"finish_reason", api_finish_reason(result.finish_reason)},
                  {"logprobs", logprobs_of(head, result, logprobs)}};
  content[head.chat ? "delta" : "text"] = head.chat ? Json::object() : Json("");
  Json chunk = chunk_of(head, sample, std::move(content));
  chunk["kv"] = kv_of(result);
  return chunk;
}

Json usage_chunk(const AnswerHead& head, std::int64_t prompt_tokens, std::int64_t completion_tokens) {
  Json chunk = object_of(head, head.chat ? "chat.completion.chunk" : "text_completion");
  chunk["usage"] = usage_of(prompt_tokens, completion_tokens);
  return chunk;
}

std::string text_of(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string event_of(const Json& object) {
  return "data: " + text_of(object) + "\n\n";
}

int http_status(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return 200;
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported:
    case StatusCode::kResourceExhausted: return 400;
    case StatusCode::kNotFound: return 404;
    case StatusCode::kCancelled: return 499;
    case StatusCode::kDataLoss:
    case StatusCode::kIo: return 500;
  }
  return 500;
}

Json error_of(const Status& status, std::string_view type) {
  const int http = http_status(status);
  if (type.empty()) type = http < 500 ? "invalid_request_error" : "server_error";
  return {{"error",
           {{"message", shortened(status.message())},
            {"type", type},
            {"param", status.settings().empty() ? Json() : Json(status.settings().front())},
            {"code", status.code() == StatusCode::kResourceExhausted ? Json("context_length_exceeded") : Json()}}}};
}

Json error_of(int http, std::string_view message, std::string_view code) {
  return {{"error",
           {{"message", shortened(message)},
            {"type", http < 500 ? "invalid_request_error" : "server_error"},
            {"param", nullptr},
            {"code", code.empty() ? Json() : Json(code)}}}};
}

}  // namespace kvasir::server
