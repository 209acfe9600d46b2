// Answers of the OpenAI API: bodies, and the chunks of streams.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/answer.h"
#include "kvasir/options.h"
#include "kvasir/result.h"
#include "kvasir/status.h"
#include "server/http/error_text.h"

namespace kvasir::server {

// The fields that all parts of one answer have in common.
struct AnswerHead {
  bool chat = false;
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::int64_t created = 0;
  std::string model;
  SamplingOptions sampling;  // of this answer
  bool names_tier = false;   // the answer has "service_tier"
  bool token_ids = false;    // it has the tokens of prompt and answer
  int prompt_logprobs = -1;  // likeliest tokens reported in place of each of the prompt; -1: no report
  bool usage_comes = false;  // the stream ends with a chunk of usage; its other chunks have "usage": null
};

// Returns "length" if anything cut the answer short, otherwise "stop". The object "kv" has the exact reason.
std::string_view api_finish_reason(FinishReason reason);

// Tokens of all prompts and all samples of an answer.
struct Usage {
  std::int64_t prompt = 0;
  std::int64_t completion = 0;
  std::int64_t cached = 0;    // of the prompts, from the prefix cache
  std::int64_t thoughts = 0;  // of the completions: see GenerateResult::thought_tokens
};
nlohmann::json usage_of(const Usage& usage);

// One choice of an answer.
struct Choice {
  int index = 0;
  const GenerateResult* result = nullptr;
  const Answer* answer = nullptr;            // of a chat: thoughts and calls; null: the result's text is the answer
  std::string_view echo;                     // precedes the choice's text
  std::span<const std::int32_t> prompt_ids;  // tokens of the prompt, if they are reported
  std::span<const std::string> pieces;       // of the prompt's tokens, if its log-probabilities are reported
  std::int64_t most_tokens = -1;             // the limit of tokens that the server set; -1: the client set one
  Usage usage;                               // of the whole answer so far, if its chunks report it
};

// Returns the object "kv": what the cache kept of the choice's text, and why the text ended.
nlohmann::json kv_of(const Choice& choice);

// Returns a whole answer. REQUIRES: choices not empty, in order of index.
nlohmann::json answer_of(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage, bool logprobs);

// Parts of a stream. Each choice begins with a first chunk (chat: the role; completion: Choice::echo) and ends with a
// last chunk (the finish reason). `tokens`: of this part; reported if `logprobs`. `offset`: characters of the choice's
// text so far; advanced.
nlohmann::json first_chunk(const AnswerHead& head, const Choice& choice, std::size_t* offset);
nlohmann::json text_chunk(const AnswerHead& head, int index, std::string_view text,
                          std::span<const GeneratedToken> tokens, bool logprobs, std::size_t* offset);
// As text_chunk, for a part of a chat's answer in the form of its API. `tokens`: as there.
nlohmann::json delta_chunk(const AnswerHead& head, int index, nlohmann::json delta,
                           std::span<const GeneratedToken> tokens, bool logprobs);
nlohmann::json last_chunk(const AnswerHead& head, const Choice& choice, std::span<const GeneratedToken> tokens,
                          bool logprobs, std::size_t* offset);
// Chunks of the whole stream, without a choice.
nlohmann::json usage_chunk(const AnswerHead& head, const Usage& usage);
nlohmann::json extra_chunk(const AnswerHead& head);

// Returns a server-sent event with an object, invalid UTF-8 replaced.
std::string event_of(const nlohmann::json& object);
std::string text_of(const nlohmann::json& object);

// Returns the HTTP status of an error, the error as clients read it, and its body.
int http_status(const Status& status);
ErrorText error_text(const Status& status);
nlohmann::json error_of(const ErrorText& error);
nlohmann::json error_of(const Status& status);
nlohmann::json error_of(int http, std::string_view message, std::string_view code = {});

}  // namespace kvasir::server
