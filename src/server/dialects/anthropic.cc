#include "server/dialects/anthropic.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/status.h"
#include "server/dialects/fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;
using Kind = AnswerPiece::Kind;

std::string_view anthropic_error_type(int http) {
  switch (http) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return http < 500 ? "invalid_request_error" : "api_error";
  }
}

Json anthropic_error_object(const ErrorText& error) {
  Json inner = {{"type", anthropic_error_type(error.http)}, {"message", error.message}};
  if (!error.field.empty()) inner["param"] = error.field;
  if (!error.code.empty()) inner["code"] = error.code;
  return {{"type", "error"}, {"error", std::move(inner)}};
}

class AnthropicWriter final : public AnswerWriter {
 public:
  explicit AnthropicWriter(bool pinned) : pinned_(pinned) {}

  void start(const AnswerHead& head, std::int64_t prompt_tokens) override {
    head_ = head;
    prompt_tokens_ = prompt_tokens;
  }

  std::string whole(std::span<const Choice> choices, const AnswerTotals& totals) override {
    const Choice& choice = choices.front();
    const Message message = message_of(choice);
    Json content = Json::array();
    if (!message.reasoning.empty())
      content.push_back({{"type", "thinking"}, {"thinking", message.reasoning}, {"signature", ""}});
    if (!message.content.empty() || (content.empty() && message.tool_calls.empty()))
      content.push_back({{"type", "text"}, {"text", message.content}});
    for (const ToolCall& call : message.tool_calls)
      content.push_back(
          {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", arguments_object(call.arguments)}});
    Json answer = message_object(std::move(content));
    answer.update(ending(choice, !message.tool_calls.empty()));
    answer["usage"] = usage(totals.usage, choice);
    answer["kv"] = kv_of(choice);
    return text_of(answer);
  }

  std::string begin(std::span<const Choice>) override {
    Json message = message_object(Json::array());
    message.update({{"stop_reason", nullptr}, {"stop_sequence", nullptr}});
    message["usage"] = {{"input_tokens", prompt_tokens_},
                        {"output_tokens", 0},
                        {"cache_creation_input_tokens", 0},
                        {"cache_read_input_tokens", 0}};
    return named_event("message_start", {{"type", "message_start"}, {"message", std::move(message)}}) +
           named_event("ping", {{"type", "ping"}});
  }

  std::string pieces(const Choice&, std::span<const AnswerPiece> pieces, std::span<const GeneratedToken>) override {
    std::string events;
    for (const AnswerPiece& piece : pieces) switch (piece.kind) {
        case Kind::kContent:
          if (piece.text.empty()) break;
          if (open_ != "text") events += open("text", {{"type", "text"}, {"text", ""}});
          events += delta({{"type", "text_delta"}, {"text", piece.text}});
          break;
        case Kind::kReasoning:
          if (piece.text.empty()) break;
          if (open_ != "thinking")
            events += open("thinking", {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
          events += delta({{"type", "thinking_delta"}, {"thinking", piece.text}});
          break;
        case Kind::kCallBegins:
          called_ = true;
          events += open("tool_use",
                         {{"type", "tool_use"}, {"id", piece.id}, {"name", piece.name}, {"input", Json::object()}});
          break;
        case Kind::kArguments: events += delta({{"type", "input_json_delta"}, {"partial_json", piece.text}}); break;
        case Kind::kCallEnds:
        case Kind::kCallBreaks: events += close(); break;
        case Kind::kCallFails:
          events += close();
          events += open("text", {{"type", "text"}, {"text", ""}});
          events += delta({{"type", "text_delta"}, {"text", piece.text}});
          break;
      }
    return events;
  }

  std::string end_choice(const Choice& choice, std::span<const GeneratedToken>) override {
    ending_ = ending(choice, called_);
    kv_ = kv_of(choice);
    creates_ = pinned_ && holds_prefixes(choice);
    // An answer without any text has one empty block, as clients read the first.
    std::string events;
    if (blocks_ == 0) events += open("text", {{"type", "text"}, {"text", ""}});
    events += close();
    return events;
  }

  std::string end(const AnswerTotals& totals) override {
    return named_event("message_delta", {{"type", "message_delta"},
                                         {"delta", ending_},
                                         {"usage", usage_object(totals.usage, creates_)},
                                         {"kv", kv_}}) +
           named_event("message_stop", {{"type", "message_stop"}});
  }

  std::string failure(const ErrorText& error) override { return named_event("error", anthropic_error_object(error)); }

 private:
  Json message_object(Json content) const {
    return {{"id", head_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", head_.model},
            {"content", std::move(content)}};
  }

  static Json ending(const Choice& choice, bool called) {
    const GenerateResult& result = *choice.result;
    Json end = {{"stop_reason", "max_tokens"}, {"stop_sequence", nullptr}};
    if (result.finish_reason == FinishReason::kStop && !result.stopped_by.empty()) {
      end = {{"stop_reason", "stop_sequence"}, {"stop_sequence", result.stopped_by}};
    } else if (result.finish_reason == FinishReason::kContext) {
      end["stop_reason"] = "model_context_window_exceeded";
    } else if (api_finish_reason(result.finish_reason) == "stop") {
      end["stop_reason"] = called ? "tool_use" : "end_turn";
    }
    return end;
  }

  // Whether the prefix cache holds the prompt now. Without a cache there is neither a hit nor a reason for a miss.
  static bool holds_prefixes(const Choice& choice) {
    const GenerateResult& result = *choice.result;
    return result.cached > 0 ||
           (!result.cache_miss.empty() && result.cache_miss != "bypass" && result.cache_miss != "too_short");
  }

  // `creates`: the client asked that the prompt stays in the cache, and it does.
  static Json usage_object(const Usage& usage, bool creates) {
    const std::int64_t fresh = usage.prompt - usage.cached;
    return {{"input_tokens", creates ? 0 : fresh},
            {"cache_creation_input_tokens", creates ? fresh : 0},
            {"cache_read_input_tokens", usage.cached},
            {"output_tokens", usage.completion}};
  }

  Json usage(const Usage& usage, const Choice& choice) const {
    return usage_object(usage, pinned_ && holds_prefixes(choice));
  }

  std::string open(std::string_view kind, Json block) {
    std::string events = close();
    open_ = kind;
    return events +
           named_event("content_block_start",
                       {{"type", "content_block_start"}, {"index", blocks_++}, {"content_block", std::move(block)}});
  }

  std::string delta(Json part) const {
    return named_event("content_block_delta",
                       {{"type", "content_block_delta"}, {"index", blocks_ - 1}, {"delta", std::move(part)}});
  }

  std::string close() {
    if (std::exchange(open_, {}).empty()) return {};
    return named_event("content_block_stop", {{"type", "content_block_stop"}, {"index", blocks_ - 1}});
  }

  const bool pinned_;
  AnswerHead head_;
  std::int64_t prompt_tokens_ = 0;
  std::string_view open_;  // kind of the block that is open; empty: none is
  int blocks_ = 0;
  bool called_ = false;
  Json ending_, kv_;
  bool creates_ = false;
};

}  // namespace

std::string anthropic_error(const ErrorText& error) {
  return text_of(anthropic_error_object(error));
}

Result<ReadBody> AnthropicMessages::read(const Json& body, const ReadContext& context) const {
  ReadBody read;
  KVASIR_ASSIGN_OR_RETURN(read.request, read_anthropic(body, context, false));
  read.writer = std::make_unique<AnthropicWriter>(read.request.options.pin);
  return read;
}

}  // namespace kvasir::server
