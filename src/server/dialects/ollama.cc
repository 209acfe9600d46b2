#include "server/dialects/ollama.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "server/dialects/fields.h"
#include "server/dialects/ollama_request.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;
using Kind = AnswerPiece::Kind;

// "2026-01-31T12:00:00.123456Z"
std::string time_now() {
  const auto now = std::chrono::system_clock::now();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  return fmt::format("{:%FT%T}.{:06d}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)), micros % 1'000'000);
}

std::string time_of(std::int64_t seconds) {
  return fmt::format("{:%FT%T}Z", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

std::int64_t nanoseconds(double seconds) {
  return static_cast<std::int64_t>(seconds * 1e9);
}

class OllamaWriter final : public AnswerWriter {
 public:
  explicit OllamaWriter(bool chat) : chat_(chat) {}

  void start(const AnswerHead& head, std::int64_t) override { head_ = head; }

  std::string whole(std::span<const Choice> choices, const AnswerTotals& totals) override {
    const Message message = message_of(choices.front());
    Json calls = Json::array();
    for (const ToolCall& call : message.tool_calls) calls.push_back(call_object(call.id, call.name, call.arguments));
    Json answer = part(message.content, message.reasoning, std::move(calls));
    answer.update(ending(choices.front()));
    answer.update(figures(*choices.front().result, totals));
    return text_of(answer);
  }

  std::string_view stream_type() const override { return "application/x-ndjson"; }
  std::string begin(std::span<const Choice>) override { return {}; }

  std::string pieces(const Choice&, std::span<const AnswerPiece> pieces, std::span<const GeneratedToken>) override {
    std::string lines;
    for (const AnswerPiece& piece : pieces) switch (piece.kind) {
        case Kind::kCallFails:
        case Kind::kContent: lines += line(part(piece.text, {}, Json::array()), false); break;
        case Kind::kReasoning: lines += line(part({}, piece.text, Json::array()), false); break;
        case Kind::kCallBegins: call_ = {piece.id, piece.name, {}}; break;
        case Kind::kArguments: call_.arguments += piece.text; break;
        // A call comes whole.
        case Kind::kCallEnds:
        case Kind::kCallBreaks:
          lines += line(part({}, {}, Json::array({call_object(call_.id, call_.name, call_.arguments)})), false);
          break;
      }
    return lines;
  }

  std::string end_choice(const Choice& choice, std::span<const GeneratedToken>) override {
    ending_ = ending(choice);
    result_ = choice.result;
    return {};
  }

  std::string end(const AnswerTotals& totals) override {
    Json last = part({}, {}, Json::array());
    last.update(ending_);
    last.update(figures(*result_, totals));
    return line(std::move(last), true);
  }

  std::string failure(const ErrorText& error) override { return ollama_error(error) + "\n"; }

 private:
  static Json call_object(const std::string& id, const std::string& name, const std::string& arguments) {
    return {{"id", id}, {"function", {{"name", name}, {"arguments", arguments_object(arguments)}}}};
  }

  // Returns a part of the answer, or all of it.
  Json part(std::string_view content, std::string_view thinking, Json calls) const {
    Json part = {{"model", head_.model}, {"created_at", time_now()}};
    if (!chat_) {
      part["response"] = content;
      if (!thinking.empty()) part["thinking"] = thinking;
      return part;
    }
    Json& message = part["message"] = {{"role", "assistant"}, {"content", content}};
    if (!thinking.empty()) message["thinking"] = thinking;
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    return part;
  }

  static std::string line(Json part, bool done) {
    part["done"] = done;
    return text_of(part) + "\n";
  }

  static Json ending(const Choice& choice) {
    return {{"done", true}, {"done_reason", api_finish_reason(choice.result->finish_reason)}, {"kv", kv_of(choice)}};
  }

  static Json figures(const GenerateResult& result, const AnswerTotals& totals) {
    return {{"total_duration", nanoseconds(totals.seconds)},
            {"load_duration", 0},  // the model is always in memory
            {"prompt_eval_count", totals.usage.prompt},
            {"prompt_eval_duration", nanoseconds(result.prompt_seconds - result.queue_seconds)},
            {"eval_count", totals.usage.completion},
            {"eval_duration", nanoseconds(result.seconds)}};
  }

  const bool chat_;
  AnswerHead head_;
  ToolCall call_;
  Json ending_;
  const GenerateResult* result_ = nullptr;
};

// Returns 64 hexadecimal digits that stay the same for the same model; not a hash of the file, which is not read for
// it.
std::string digest_of(const ModelSummary& model) {
  std::string digits;
  for (int half = 0; half < 2; ++half) {
    Hasher hasher;
    const std::string facts = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", half, model.name, model.architecture, model.context,
                                          model.vocabulary, model.weight_bytes);
    hasher.add(std::as_bytes(std::span(facts)));
    digits += hasher.digest().hex();
  }
  return digits;
}

Json details_of(const ModelSummary& model) {
  return {{"parent_model", ""},           {"format", "gguf"},
          {"family", model.architecture}, {"families", Json::array({model.architecture})},
          {"parameter_size", ""},         {"quantization_level", ""}};
}

Json entry_of(const ModelDesk::Info& model) {
  Json one = {{"name", model.defaults.name},         {"model", model.defaults.name},
              {"size", model.size.weights},          {"kv_size", model.size.kv},
              {"state", name_of(model.state)},       {"digest", digest_of(model.summary)},
              {"details", details_of(model.summary)}};
  if (!model.reason.empty()) one["reason"] = model.reason;
  return one;
}

}  // namespace

std::string ollama_error(const ErrorText& error) {
  return text_of({{"error", error.message}});
}

Result<ReadBody> OllamaDialect::read(const Json& body, const ReadContext& context) const {
  ReadBody read;
  KVASIR_ASSIGN_OR_RETURN(read.request, read_ollama(body, chat_, context));
  if (read.request.options.messages.empty() && read.request.prompts.empty()) {
    // Clients load a model so, which is loaded by now.
    Json answer = {{"model", read.request.model}, {"created_at", time_now()}, {"done", true}, {"done_reason", "load"}};
    if (chat_) answer["message"] = {{"role", "assistant"}, {"content", ""}};
    if (!chat_) answer["response"] = "";
    read.at_once = text_of(answer);
  }
  read.writer = std::make_unique<OllamaWriter>(chat_);
  return read;
}

std::string OllamaDialect::model_of(std::string named) const {
  return ollama_model(std::move(named));
}

std::string ollama_model(std::string name) {
  constexpr std::string_view kLatest = ":latest";
  if (name.ends_with(kLatest)) name.resize(name.size() - kLatest.size());
  return name;
}

Json ollama_tags(const std::vector<ModelDesk::Info>& models, std::int64_t since) {
  Json list = Json::array();
  for (const ModelDesk::Info& model : models) {
    list.push_back(entry_of(model));
    list.back()["modified_at"] = time_of(since);
  }
  return {{"models", std::move(list)}};
}

Json ollama_running(const std::vector<ModelDesk::Info>& models) {
  Json list = Json::array();
  for (const ModelDesk::Info& model : models) {
    if (model.served == nullptr) continue;
    Json& one = list.emplace_back(entry_of(model));
    one["expires_at"] = "9999-12-31T23:59:59Z";  // it stays until another model needs the memory
    one["size_vram"] = 0;
    one["context_length"] = model.summary.context;
  }
  return {{"models", std::move(list)}};
}

Json ollama_show(const ModelSummary& model, bool tools, std::int64_t since) {
  Json capabilities = Json::array({"completion"});
  if (tools) capabilities.push_back("tools");
  return {{"license", ""},
          {"modelfile", ""},
          {"parameters", ""},
          {"template", ""},
          {"modified_at", time_of(since)},
          {"details", details_of(model)},
          {"model_info",
           {{"general.architecture", model.architecture},
            {"general.basename", model.name},
            {model.architecture + ".context_length", model.context},
            {model.architecture + ".vocab_size", model.vocabulary}}},
          {"capabilities", std::move(capabilities)}};
}

}  // namespace kvasir::server
