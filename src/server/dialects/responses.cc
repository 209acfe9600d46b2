#include "server/dialects/responses.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "server/dialects/fields.h"
#include "server/dialects/responses_request.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;
using Kind = AnswerPiece::Kind;

class ResponsesWriter final : public AnswerWriter {
 public:
  ResponsesWriter(ResponsesBody body, ResponseStore& store, const Caller& caller)
      : body_(std::move(body)), store_(store) {
    caller_.tenant = caller.tenant;
    caller_.key_id = caller.key_id;
  }

  void start(const AnswerHead& head, std::int64_t) override { head_ = head; }

  std::string whole(std::span<const Choice> choices, const AnswerTotals& totals) override {
    const Choice& choice = choices.front();
    const Message message = message_of(choice);
    Json output = Json::array();
    if (!message.reasoning.empty()) output.push_back(item(Kind::kReasoning, message.reasoning, {}, "completed"));
    if (!message.content.empty() || message.tool_calls.empty())
      output.push_back(item(Kind::kContent, message.content, {}, status_of(choice)));
    for (const ToolCall& call : message.tool_calls)
      output.push_back(
          item(Kind::kCallBegins, call.arguments, call, Json::accept(call.arguments) ? "completed" : "incomplete"));
    return text_of(completed(choice, message, std::move(output), totals));
  }

  std::string begin(std::span<const Choice>) override {
    std::string events = event("response.created", {{"response", response("in_progress")}});
    events += event("response.in_progress", {{"response", response("in_progress")}});
    return events;
  }

  std::string pieces(const Choice&, std::span<const AnswerPiece> pieces, std::span<const GeneratedToken>) override {
    std::string events;
    for (const AnswerPiece& piece : pieces) switch (piece.kind) {
        case Kind::kContent:
        case Kind::kReasoning:
          if (piece.text.empty()) break;
          if (!open_ || kind_ != piece.kind) events += open(piece.kind, {});
          text_ += piece.text;
          events += delta(piece.text);
          break;
        case Kind::kCallBegins: events += open(Kind::kCallBegins, {piece.id, piece.name, {}}); break;
        case Kind::kArguments:
          text_ += piece.text;
          events += delta(piece.text);
          break;
        case Kind::kCallEnds: events += close("completed"); break;
        case Kind::kCallBreaks: events += close("incomplete"); break;
        case Kind::kCallFails:
          events += close("incomplete");
          events += open(Kind::kContent, {});
          text_ += piece.text;
          events += delta(piece.text);
          break;
      }
    return events;
  }

  std::string end_choice(const Choice& choice, std::span<const GeneratedToken>) override {
    choice_ = choice;
    std::string events;
    // An answer without any text has one empty message, as clients read the first.
    if (output_.empty() && !open_) events += open(Kind::kContent, {});
    return events + close(status_of(choice));
  }

  std::string end(const AnswerTotals& totals) override {
    const bool whole = status_of(choice_) == "completed";
    Json answer = completed(choice_, std::move(said_), std::move(output_), totals);
    return event(whole ? "response.completed" : "response.incomplete", {{"response", std::move(answer)}});
  }

  std::string failure(const ErrorText& error) override {
    Json failed = response("failed");
    failed["error"] = {{"code", "server_error"}, {"message", error.message}};
    return event("response.failed", {{"response", std::move(failed)}});
  }

 private:
  static std::string_view status_of(const Choice& choice) {
    return api_finish_reason(choice.result->finish_reason) == "stop" ? "completed" : "incomplete";
  }

  std::string event(std::string_view type, Json data) {
    data["type"] = type;
    data["sequence_number"] = sequence_++;
    return named_event(type, data);
  }

  Json response(std::string_view status) const {
    // Prints floats as short decimals, see sampling_of.
    const auto number = [](float value) { return Json::parse(fmt::format("{}", value)); };
    Json response = body_.repeated;
    response.update({{"id", head_.id},
                     {"object", "response"},
                     {"created_at", head_.created},
                     {"model", head_.model},
                     {"status", status},
                     {"error", nullptr},
                     {"incomplete_details", nullptr},
                     {"output", Json::array()},
                     {"temperature", number(head_.sampling.temperature)},
                     {"top_p", number(head_.sampling.top_p)},
                     {"truncation", "disabled"},
                     {"background", false},
                     {"store", body_.store && store_.enabled()},
                     {"usage", nullptr}});
    return response;
  }

  // Returns the response at its end, and stores it.
  Json completed(const Choice& choice, Message message, Json output, const AnswerTotals& totals) {
    Json answer = response(status_of(choice));
    if (status_of(choice) == "incomplete") answer["incomplete_details"] = {{"reason", "max_output_tokens"}};
    answer["output"] = std::move(output);
    const Usage& usage = totals.usage;
    answer["usage"] = {{"input_tokens", usage.prompt},
                       {"input_tokens_details", {{"cached_tokens", usage.cached}, {"cache_write_tokens", 0}}},
                       {"output_tokens", usage.completion},
                       {"output_tokens_details", {{"reasoning_tokens", usage.thoughts}}},
                       {"total_tokens", usage.prompt + usage.completion}};
    answer["kv"] = kv_of(choice);
    if (!body_.store || !store_.enabled()) return answer;
    // A call that broke off has no place in a prompt.
    std::erase_if(message.tool_calls, [](const ToolCall& call) { return !Json::accept(call.arguments); });
    body_.conversation.push_back(std::move(message));
    answer["store"] = store_.put(caller_, head_.id, {text_of(answer), std::move(body_.conversation)});
    return answer;
  }

  std::string item_id() const {
    std::string_view prefix = "msg_";
    if (kind_ == Kind::kReasoning) prefix = "rs_";
    if (kind_ == Kind::kCallBegins) prefix = "fc_";
    return fmt::format("{}{}_{}", prefix, std::string_view(head_.id).substr(head_.id.find('_') + 1), items_);
  }

  // Returns an item of the output, counted.
  Json item(Kind kind, const std::string& text, const ToolCall& call, std::string_view status) {
    kind_ = kind;
    Json made = item_now(text, call, status);
    ++items_;
    return made;
  }

  Json item_now(const std::string& text, const ToolCall& call, std::string_view status) const {
    Json made = {{"id", item_id()}, {"status", status}};
    if (kind_ == Kind::kReasoning) {
      made.update({{"type", "reasoning"}, {"summary", Json::array()}, {"content", Json::array({part_of(text)})}});
    } else if (kind_ == Kind::kContent) {
      made.update({{"type", "message"}, {"role", "assistant"}, {"content", Json::array({part_of(text)})}});
    } else {
      made.update({{"type", "function_call"}, {"call_id", call.id}, {"name", call.name}, {"arguments", text}});
    }
    return made;
  }

  Json part_of(const std::string& text) const {
    if (kind_ == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
  }

  // The members that all events of the open item have.
  Json place(bool part) const {
    Json place = {{"item_id", item_id()}, {"output_index", items_}};
    if (part) place["content_index"] = 0;
    return place;
  }

  std::string open(Kind kind, ToolCall call) {
    std::string events = close("completed");
    kind_ = kind;
    call_ = std::move(call);
    open_ = true;
    Json begun = item_now("", call_, "in_progress");
    if (kind != Kind::kCallBegins) begun["content"] = Json::array();
    events += event("response.output_item.added", {{"output_index", items_}, {"item", std::move(begun)}});
    if (kind == Kind::kCallBegins) return events;
    Json data = place(true);
    data["part"] = part_of("");
    return events + event("response.content_part.added", std::move(data));
  }

  std::string delta(const std::string& text) {
    Json data = place(kind_ != Kind::kCallBegins);
    data["delta"] = text;
    if (kind_ == Kind::kCallBegins) return event("response.function_call_arguments.delta", std::move(data));
    if (kind_ == Kind::kReasoning) return event("response.reasoning_text.delta", std::move(data));
    data["logprobs"] = Json::array();
    return event("response.output_text.delta", std::move(data));
  }

  std::string close(std::string_view status) {
    if (!std::exchange(open_, false)) return {};
    std::string events;
    Json data = place(kind_ != Kind::kCallBegins);
    if (kind_ == Kind::kCallBegins) {
      data["arguments"] = text_;
      data["name"] = call_.name;
      events += event("response.function_call_arguments.done", std::move(data));
      said_.tool_calls.push_back({call_.id, call_.name, text_});
    } else {
      data["text"] = text_;
      if (kind_ == Kind::kContent) data["logprobs"] = Json::array();
      events += event(kind_ == Kind::kContent ? "response.output_text.done" : "response.reasoning_text.done",
                      std::move(data));
      Json part = place(true);
      part["part"] = part_of(text_);
      events += event("response.content_part.done", std::move(part));
      (kind_ == Kind::kContent ? said_.content : said_.reasoning) += text_;
    }
    output_.push_back(item_now(text_, call_, status));
    events += event("response.output_item.done", {{"output_index", items_}, {"item", output_.back()}});
    ++items_;
    text_.clear();
    return events;
  }

  ResponsesBody body_;
  ResponseStore& store_;
  Caller caller_;
  AnswerHead head_;
  std::int64_t sequence_ = 0;
  int items_ = 0;  // complete ones
  // Of a stream: the item that is open, and what came before it.
  bool open_ = false;
  Kind kind_ = Kind::kContent;
  ToolCall call_;
  std::string text_;
  Json output_ = Json::array();
  Message said_{"assistant", {}};
  Choice choice_;
};

}  // namespace

Result<ReadBody> OpenAiResponses::read(const Json& body, const ReadContext& context) const {
  KVASIR_ASSIGN_OR_RETURN(ResponsesBody both, read_responses(body, store_, context));
  ReadBody read;
  read.request = std::move(both.request);
  both.request = {};
  read.writer = std::make_unique<ResponsesWriter>(std::move(both), store_, context.caller);
  return read;
}

}  // namespace kvasir::server
