// Answers of the OpenAI API: bodies, and the chunks of streams.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/result.h"
#include "kvasir/status.h"

namespace kvasir::server {

// What all parts of one answer have in common.
struct AnswerHead {
  bool chat = false;
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::int64_t created = 0;
  std::string model;
};

// Returns "length" for whatever cut the answer short, and otherwise "stop". The object "kv" has the exact reason.
std::string_view api_finish_reason(FinishReason reason);

nlohmann::json kv_of(const GenerateResult& result);
nlohmann::json usage_of(std::int64_t prompt_tokens, std::int64_t completion_tokens);

// The whole answer. results: by sample; `prefix` stands in front of each text.
nlohmann::json answer_of(const AnswerHead& head, const std::vector<GenerateResult>& results, std::string_view prefix,
                         bool logprobs);

// Parts of a stream: the first of a sample (chat: its role), some text, and the last (with the reason).
nlohmann::json first_chunk(const AnswerHead& head, int sample);
nlohmann::json text_chunk(const AnswerHead& head, int sample, std::string_view text);
nlohmann::json last_chunk(const AnswerHead& head, int sample, const GenerateResult& result, bool logprobs);
nlohmann::json usage_chunk(const AnswerHead& head, std::int64_t prompt_tokens, std::int64_t completion_tokens);

// Returns a server-sent event with an object, invalid UTF-8 replaced.
std::string event_of(const nlohmann::json& object);
std::string text_of(const nlohmann::json& object);

// Returns the HTTP status of an error, and its body.
int http_status(const Status& status);
nlohmann::json error_of(const Status& status, std::string_view type = {});
nlohmann::json error_of(int http, std::string_view message, std::string_view code = {});

}  // namespace kvasir::server
