#include "server/api/api_response.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api/answer_pieces.h"
#include "server/api/kv_report_json.h"
#include "server/http/http_message.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

// Messages quote the client's input, which may be large.
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
  return {{"token", token_name(choice.bytes)}, {"logprob", choice.log_probability}, {"bytes", bytes_of(choice.bytes)}};
}

Json chat_logprobs(std::span<const GeneratedToken> tokens) {
  Json content = Json::array();
  for (const GeneratedToken& token : tokens) {
    Json each = choice_of(token.token);
    each["top_logprobs"] = Json::array();
    for (const TokenChoice& choice : token.likeliest) each["top_logprobs"].push_back(choice_of(choice));
    content.push_back(std::move(each));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// The number of characters that begin in these bytes.
std::size_t characters(std::string_view bytes) {
  return static_cast<std::size_t>(std::ranges::count_if(bytes, [](char c) { return (c & 0xC0) != 0x80; }));
}

// Aligns the tokens of a prompt with the text that the answer shows of it. A tokenizer may put a token such as "<s>" or
// a space in front of the text, and decoding token ids may omit such a space.
class EchoedPrompt {
 public:
  EchoedPrompt(std::span<const std::string> pieces, std::string_view echo) : echo_(echo) {
    std::string all;
    for (const std::string& piece : pieces) all += piece;
    if (all.ends_with(echo)) in_front_ = all.size() - echo.size();
  }

  // Returns the part of the next piece that the text shows.
  std::string_view shown(std::string_view piece) {
    std::size_t hidden = std::min(in_front_, piece.size());
    in_front_ -= hidden;
    const std::string_view rest = echo_.substr(std::min(at_, echo_.size()));
    if (hidden == 0 && piece.starts_with(' ') && !rest.starts_with(piece) && rest.starts_with(piece.substr(1)))
      hidden = 1;
    else if (hidden == 0 && !rest.starts_with(piece))
      hidden = piece.size();  // a control token that the text does not show
    at_ += piece.size() - hidden;
    return piece.substr(hidden);
  }

 private:
  std::string_view echo_;
  std::size_t in_front_ = 0, at_ = 0;  // bytes
};

// Log-probabilities in the form of completions: parallel lists.
class LogprobLists {
 public:
  explicit LogprobLists(std::size_t* offset) : offset_(*offset) {}

  // `shown`: the part of the token that the text shows.
  void add(const GeneratedToken& token, std::string_view shown) {
    // Clients expect the chosen token among the top ones, likely or not.
    Json top = {{token_name(token.token.bytes), token.token.log_probability}};
    for (const TokenChoice& choice : token.likeliest) top[token_name(choice.bytes)] = choice.log_probability;
    add(token.token.bytes, token.token.log_probability, std::move(top), shown);
  }
  void add(const GeneratedToken& token) { add(token, token.hidden ? std::string_view() : token.token.bytes); }
  // Adds the first token of a prompt, which has no log-probability.
  void add_first(std::string_view piece, std::string_view shown) { add(piece, nullptr, nullptr, shown); }
  Json json() && {
    return {{"tokens", std::move(tokens_)},
            {"token_logprobs", std::move(values_)},
            {"top_logprobs", std::move(top_)},
            {"text_offset", std::move(offsets_)}};
  }

 private:
  void add(std::string_view piece, Json value, Json top, std::string_view shown) {
    tokens_.push_back(token_name(piece));
    values_.push_back(std::move(value));
    top_.push_back(std::move(top));
    offsets_.push_back(offset_);
    offset_ += characters(shown);
  }

  std::size_t& offset_;
  Json tokens_ = Json::array(), values_ = Json::array(), top_ = Json::array(), offsets_ = Json::array();
};

// `end`: the end token, which completions list and chats do not; may be null.
Json logprobs_of(const AnswerHead& head, std::span<const GeneratedToken> tokens, const GeneratedToken* end,
                 bool logprobs, std::size_t* offset) {
  if (!logprobs) return nullptr;
  if (head.chat) return chat_logprobs(tokens);
  LogprobLists lists(offset);
  for (const GeneratedToken& token : tokens) lists.add(token);
  if (end != nullptr) lists.add(*end, "");
  return std::move(lists).json();
}

const GeneratedToken* end_of(const GenerateResult& result) {
  return result.end_choice ? &*result.end_choice : nullptr;
}

Json logprobs_of(const AnswerHead& head, const Choice& choice, bool logprobs) {
  std::size_t offset = 0;
  if (!logprobs || head.chat || choice.pieces.empty()) {
    offset = characters(choice.echo);
    return logprobs_of(head, choice.result->choices, end_of(*choice.result), logprobs, &offset);
  }
  LogprobLists lists(&offset);
  EchoedPrompt prompt(choice.pieces, choice.echo);
  lists.add_first(choice.pieces.front(), prompt.shown(choice.pieces.front()));
  for (const GeneratedToken& token : choice.result->prompt_choices) lists.add(token, prompt.shown(token.token.bytes));
  for (const GeneratedToken& token : choice.result->choices) lists.add(token);
  if (const GeneratedToken* end = end_of(*choice.result)) lists.add(*end, "");
  return std::move(lists).json();
}

Json object_of(const AnswerHead& head, std::string_view object) {
  Json json = {{"id", head.id},
               {"object", object},
               {"created", head.created},
               {"model", head.model},
               {"choices", Json::array()}};
  if (head.names_tier) json["service_tier"] = "default";
  return json;
}

// `end`: the token that ended the text; may be null.
Json ids_of(std::span<const GeneratedToken> tokens, const GeneratedToken* end) {
  Json ids = Json::array();
  for (const GeneratedToken& token : tokens) ids.push_back(token.token.id);
  if (end != nullptr) ids.push_back(end->token.id);
  return ids;
}

// Log-probabilities of a prompt in vLLM's form: for each token an object with it and the likeliest in its place, by id;
// null for the first.
Json prompt_logprobs_of(std::span<const GeneratedToken> tokens, int likeliest) {
  const auto entry = [](const TokenChoice& choice) -> Json {
    return {{"logprob", choice.log_probability}, {"rank", choice.rank}, {"decoded_token", token_name(choice.bytes)}};
  };
  Json list = Json::array({nullptr});
  for (const GeneratedToken& token : tokens) {
    Json each = {{std::to_string(token.token.id), entry(token.token)}};
    for (const TokenChoice& choice :
         std::span(token.likeliest)
             .first(std::min<std::size_t>(token.likeliest.size(), static_cast<std::size_t>(likeliest))))
      each.emplace(std::to_string(choice.id), entry(choice));
    list.push_back(std::move(each));
  }
  return list;
}

// Adds what the answer reports of the prompt: to the choice of a completion, to the answer of a chat, as vLLM does.
void add_prompt_report(const AnswerHead& head, const Choice& choice, Json& json) {
  if (head.token_ids) json["prompt_token_ids"] = choice.prompt_ids;
  if (head.prompt_logprobs >= 0)
    json["prompt_logprobs"] = prompt_logprobs_of(choice.result->prompt_choices, head.prompt_logprobs);
}

void add_stop(const GenerateResult& result, Json& choice) {
  if (result.stop_token) choice["stop_reason"] = *result.stop_token;
}

Json sampling_of(const AnswerHead& head) {
  // Prints floats as short decimals: their conversion to double would show digits that nobody gave.
  const auto number = [](float value) { return Json::parse(fmt::format("{}", value)); };
  const SamplingOptions& sampling = head.sampling;
  Json json = {{"temperature", number(sampling.temperature)},
               {"top_k", sampling.top_k},
               {"top_p", number(sampling.top_p)},
               {"min_p", number(sampling.min_p)},
               {"repetition_penalty", number(sampling.repetition_penalty)},
               {"frequency_penalty", number(sampling.frequency_penalty)},
               {"presence_penalty", number(sampling.presence_penalty)}};
  constexpr std::pair<const char*, float SamplingOptions::*> kSeldom[] = {
      {"top_n_sigma", &SamplingOptions::top_n_sigma},
      {"typical_p", &SamplingOptions::typical_p},
      {"xtc_probability", &SamplingOptions::xtc_probability},
      {"dynatemp_range", &SamplingOptions::dynatemp_range},
      {"dry_multiplier", &SamplingOptions::dry_multiplier}};
  for (const auto& [name, option] : kSeldom)
    if (sampling.*option != SamplingOptions().*option) json[name] = number(sampling.*option);
  return json;
}

Json empty_chunk(const AnswerHead& head) {
  Json chunk = object_of(head, head.chat ? "chat.completion.chunk" : "text_completion");
  if (head.usage_comes) chunk["usage"] = nullptr;
  return chunk;
}

Json chunk_of(const AnswerHead& head, int sample, Json content) {
  Json chunk = empty_chunk(head);
  content["index"] = sample;
  content.emplace("finish_reason", nullptr);
  content.emplace("logprobs", nullptr);
  chunk["choices"].push_back(std::move(content));
  return chunk;
}

std::string_view finish_reason_of(const Choice& choice) {
  const std::string_view reason = api_finish_reason(choice.result->finish_reason);
  return reason == "stop" && choice.answer != nullptr && !choice.answer->calls.empty() && !choice.answer->broken
             ? "tool_calls"
             : reason;
}

}  // namespace

std::string_view api_finish_reason(FinishReason reason) {
  return reason == FinishReason::kEnd || reason == FinishReason::kStop ? "stop" : "length";
}

Json kv_of(const Choice& choice) {
  const GenerateResult& result = *choice.result;
  const KvReport& kv = result.kv;
  Json json = {{"policy", kv.policy},
               {"codec", kv.codec},
               {"seen", kv.seen},
               {"kept", kv.kept},
               {"cached", result.cached},
               {"cached_from", result.cached_from.empty() ? Json() : Json(result.cached_from)},
               {"cache_miss", result.cache_miss.empty() ? Json() : Json(result.cache_miss)},
               {"encodings_mean", kv.encodings_mean},
               {"encodings_max", kv.encodings_max},
               {"bytes", kv.bytes},
               {"bytes_peak", kv.bytes_peak},
               {"preemptions", result.preemptions},
               {"recomputed", result.recomputed},
               {"seed", result.seed},
               {"finish_reason", finish_reason_name(result.finish_reason)}};
  add_places(kv, &json);
  if (result.quality) json["quality"] = quality_json<Json>(*result.quality);
  if (result.draft) json["draft"] = draft_json<Json>(*result.draft);
  if (choice.most_tokens >= 0) json["max_tokens"] = choice.most_tokens;
  return json;
}

Json usage_of(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.thoughts}}}};
}

Json answer_of(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage, bool logprobs) {
  Json answer = object_of(head, head.chat ? "chat.completion" : "text_completion");
  for (const Choice& each : choices) {
    Json choice = {{"index", each.index},
                   {"finish_reason", finish_reason_of(each)},
                   {"logprobs", logprobs_of(head, each, logprobs)}};
    const std::string text = std::string(each.echo) + each.result->text;
    if (each.answer != nullptr) {
      choice["message"] = message_of(*each.answer);
    } else if (head.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
    } else {
      choice["text"] = text;
    }
    if (head.token_ids) choice["token_ids"] = ids_of(each.result->choices, end_of(*each.result));
    if (!head.chat) add_prompt_report(head, each, choice);
    add_stop(*each.result, choice);
    if (choices.size() > 1) choice["kv"] = kv_of(each);
    answer["choices"].push_back(std::move(choice));
  }
  if (head.chat) add_prompt_report(head, choices.front(), answer);
  answer["usage"] = usage_of(usage);
  answer["sampling"] = sampling_of(head);
  answer["kv"] = kv_of(choices.front());
  return answer;
}

Json first_chunk(const AnswerHead& head, const Choice& choice, std::size_t* offset) {
  if (head.chat) {
    Json chunk = chunk_of(head, choice.index, {{"delta", {{"role", "assistant"}, {"content", choice.echo}}}});
    add_prompt_report(head, choice, chunk);
    return chunk;
  }
  *offset += characters(choice.echo);
  Json content = {{"text", choice.echo}};
  add_prompt_report(head, choice, content);
  return chunk_of(head, choice.index, std::move(content));
}

Json text_chunk(const AnswerHead& head, int index, std::string_view text, std::span<const GeneratedToken> tokens,
                bool logprobs, std::size_t* offset) {
  Json content = {{"logprobs", logprobs_of(head, tokens, nullptr, logprobs, offset)}};
  if (head.chat) {
    content["delta"] = {{"content", text}};
  } else {
    content["text"] = text;
  }
  if (head.token_ids) content["token_ids"] = ids_of(tokens, nullptr);
  return chunk_of(head, index, std::move(content));
}

Json delta_chunk(const AnswerHead& head, int index, Json delta, std::span<const GeneratedToken> tokens, bool logprobs) {
  return chunk_of(head, index,
                  {{"delta", std::move(delta)}, {"logprobs", logprobs_of(head, tokens, nullptr, logprobs, nullptr)}});
}

Json last_chunk(const AnswerHead& head, const Choice& choice, std::span<const GeneratedToken> tokens, bool logprobs,
                std::size_t* offset) {
  Json content = {{"finish_reason", finish_reason_of(choice)},
                  {"logprobs", logprobs_of(head, tokens, end_of(*choice.result), logprobs, offset)}};
  content[head.chat ? "delta" : "text"] = head.chat ? Json::object() : Json("");
  if (head.token_ids) content["token_ids"] = ids_of(tokens, end_of(*choice.result));
  add_stop(*choice.result, content);
  Json chunk = chunk_of(head, choice.index, std::move(content));
  chunk["sampling"] = sampling_of(head);
  chunk["kv"] = kv_of(choice);
  return chunk;
}

Json extra_chunk(const AnswerHead& head) {
  return empty_chunk(head);
}

Json usage_chunk(const AnswerHead& head, const Usage& usage) {
  Json chunk = extra_chunk(head);
  chunk["usage"] = usage_of(usage);
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

ErrorText error_text(const Status& status) {
  std::string message = status.message();
  // LangChain and others recognise an overflow by these words.
  if (message.find("maximum context length") != std::string::npos) message.insert(0, "the prompt is too long: ");
  return {http_status(status), shortened(message),
          status.code() == StatusCode::kResourceExhausted ? "context_length_exceeded" : "",
          status.settings().empty() ? "" : std::string(status.settings().front())};
}

Json error_of(const ErrorText& error) {
  return {{"error",
           {{"message", shortened(error.message)},
            {"type", error_type(error.http)},
            {"param", error.field.empty() ? Json() : Json(error.field)},
            {"code", error.code.empty() ? Json() : Json(error.code)}}}};
}

Json error_of(const Status& status) {
  return error_of(error_text(status));
}

Json error_of(int http, std::string_view message, std::string_view code) {
  return error_of(ErrorText{http, std::string(message), std::string(code), {}});
}

}  // namespace kvasir::server
