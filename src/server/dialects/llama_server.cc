#include "server/dialects/llama_server.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/status.h"
#include "server/dialects/llama_options.h"
#include "server/dialects/llama_request.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

std::string_view llama_error_type(int http) {
  switch (http) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "unavailable_error";
    default: return http < 500 ? "invalid_request_error" : "server_error";
  }
}

Json llama_error_object(const ErrorText& error) {
  const std::string_view type =
      error.code == "context_length_exceeded" ? "exceed_context_size_error" : llama_error_type(error.http);
  return {{"error", {{"code", error.http}, {"message", error.message}, {"type", type}}}};
}

Json bytes_array(std::string_view text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json probability_of(const TokenChoice& choice) {
  return {{"id", choice.id},
          {"token", token_name(choice.bytes)},
          {"bytes", bytes_array(choice.bytes)},
          {"logprob", choice.log_probability}};
}

class LlamaWriter final : public AnswerWriter {
 public:
  explicit LlamaWriter(LlamaShown shown) : shown_(std::move(shown)) {}

  void start(const AnswerHead& head, std::int64_t prompt_tokens) override {
    head_ = head;
    prompt_tokens_ = prompt_tokens;
  }

  std::string whole(std::span<const Choice> choices, const AnswerTotals&) override {
    if (choices.size() == 1) return text_of(last_of(choices.front(), choices.front().result->text, {}));
    Json list = Json::array();
    for (const Choice& choice : choices) list.push_back(last_of(choice, choice.result->text, {}));
    return text_of(list);
  }

  std::string begin(std::span<const Choice> choices) override {
    decoded_.resize(choices.size());
    return {};
  }

  std::string pieces(const Choice& choice, std::span<const AnswerPiece> pieces,
                     std::span<const GeneratedToken> tokens) override {
    std::string chunks;
    for (const AnswerPiece& piece : pieces) {
      if (piece.kind != AnswerPiece::Kind::kContent) continue;
      std::int64_t& decoded = decoded_[static_cast<std::size_t>(choice.index)];
      decoded += tokens.empty() ? 1 : std::ssize(tokens);
      Json chunk = {
          {"index", choice.index}, {"content", piece.text},       {"tokens", ids_of(tokens)},          {"stop", false},
          {"id_slot", -1},         {"tokens_predicted", decoded}, {"tokens_evaluated", prompt_tokens_}};
      add_probabilities(std::exchange(tokens, {}), &chunk);
      chunks += event_of(chunk);
    }
    return chunks;
  }

  std::string end_choice(const Choice& choice, std::span<const GeneratedToken> tokens) override {
    return event_of(last_of(choice, "", tokens));
  }

  std::string end(const AnswerTotals&) override { return {}; }
  std::string failure(const ErrorText& error) override { return event_of(llama_error_object(error)); }

 private:
  Json ids_of(std::span<const GeneratedToken> tokens) const {
    Json ids = Json::array();
    if (shown_.tokens)
      for (const GeneratedToken& token : tokens) ids.push_back(token.token.id);
    return ids;
  }

  void add_probabilities(std::span<const GeneratedToken> tokens, Json* part) const {
    if (!shown_.probabilities || tokens.empty()) return;
    Json& list = (*part)["completion_probabilities"] = Json::array();
    for (const GeneratedToken& token : tokens) {
      Json each = probability_of(token.token);
      each["top_logprobs"] = Json::array();
      for (const TokenChoice& choice : token.likeliest) each["top_logprobs"].push_back(probability_of(choice));
      list.push_back(std::move(each));
    }
  }

  static std::string_view stop_type(FinishReason reason) {
    if (reason == FinishReason::kEnd) return "eos";
    return reason == FinishReason::kStop ? "word" : "limit";
  }

  static Json timings(const GenerateResult& result) {
    const std::int64_t read = result.prompt_tokens - result.cached;
    const double read_ms = 1000 * (result.prompt_seconds - result.queue_seconds), ms = 1000 * result.seconds;
    const auto each = [](double time, std::int64_t tokens) {
      return tokens > 0 ? time / static_cast<double>(tokens) : 0;
    };
    const auto rate = [](double time, std::int64_t tokens) {
      return time > 0 ? 1000 * static_cast<double>(tokens) / time : 0;
    };
    return {{"cache_n", result.cached},
            {"prompt_n", read},
            {"prompt_ms", read_ms},
            {"prompt_per_token_ms", each(read_ms, read)},
            {"prompt_per_second", rate(read_ms, read)},
            {"predicted_n", result.tokens},
            {"predicted_ms", ms},
            {"predicted_per_token_ms", each(ms, result.tokens)},
            {"predicted_per_second", rate(ms, result.tokens)}};
  }

  // Returns the last part of a stream, or a whole answer.
  Json last_of(const Choice& choice, std::string_view content, std::span<const GeneratedToken> tokens) const {
    const GenerateResult& result = *choice.result;
    const bool whole = !shown_.stream;
    if (whole) tokens = result.choices;
    Json settings = llama_settings(shown_.generate);
    settings["seed"] = result.seed;
    settings["stream"] = shown_.stream;
    const auto prompt = static_cast<std::size_t>(choice.index / shown_.n);
    Json last = {{"index", choice.index},
                 {"content", content},
                 {"tokens", ids_of(tokens)},
                 {"id_slot", -1},
                 {"stop", true},
                 {"model", head_.model},
                 {"tokens_predicted", result.tokens},
                 {"tokens_evaluated", result.prompt_tokens},
                 {"generation_settings", std::move(settings)},
                 {"prompt", shown_.prompts[prompt]},
                 {"has_new_line", result.text.find('\n') != std::string::npos},
                 {"truncated", result.kv.kept < result.kv.seen},  // the policy dropped tokens
                 {"stop_type", stop_type(result.finish_reason)},
                 {"stopping_word", result.stopped_by},
                 {"tokens_cached", result.kv.kept},
                 {"timings", timings(result)},
                 {"kv", kv_of(choice)}};
    add_probabilities(tokens, &last);
    return last;
  }

  const LlamaShown shown_;
  AnswerHead head_;
  std::int64_t prompt_tokens_ = 0;
  std::vector<std::int64_t> decoded_;  // tokens of each choice so far
};

}  // namespace

std::string llama_error(const ErrorText& error) {
  return text_of(llama_error_object(error));
}

Result<ReadBody> LlamaCompletion::read(const Json& body, const ReadContext& context) const {
  KVASIR_ASSIGN_OR_RETURN(LlamaBody both, read_llama(body, infill_, context));
  return ReadBody{std::move(both.request), std::make_unique<LlamaWriter>(std::move(both.shown))};
}

Json llama_props(const ModelSummary& model, const std::string& name, const std::string& version,
                 const SamplingOptions& sampling, int slots) {
  GenerateOptions usual;
  usual.sampling = sampling;
  return {{"default_generation_settings", {{"params", llama_settings(usual)}, {"n_ctx", model.context}}},
          {"total_slots", slots},
          {"model_alias", name},
          {"modalities", {{"vision", false}, {"audio", false}}},
          {"is_sleeping", false},
          {"build_info", "kvasir-" + version}};
}

Json llama_adapters(const std::vector<AdapterSummary>& adapters) {
  Json list = Json::array();
  for (const AdapterSummary& adapter : adapters)
    list.push_back({{"id", list.size()},
                    {"path", adapter.path.substr(adapter.path.rfind('/') + 1)},
                    {"scale", std::stod(fmt::format("{}", adapter.scale))},  // 0.1 rather than 0.10000000149
                    {"task_name", adapter.task},
                    {"prompt_prefix", adapter.prompt_prefix},
                    {"name", adapter.name},
                    {"rank", adapter.rank},
                    {"bytes", adapter.bytes}});
  return list;
}

Json llama_slots(const SequenceList& own, std::int64_t context, int slots) {
  Json list = Json::array();
  for (const SequenceView& view : own.sequences) {
    if (view.state != SequenceView::State::kRunning) continue;
    list.push_back(
        {{"id", list.size()},
         {"id_task", static_cast<std::uint64_t>(view.request)},
         {"n_ctx", context},
         {"speculative", false},
         {"is_processing", true},
         {"n_prompt_tokens", view.prompt_tokens},
         {"n_prompt_tokens_cache", view.cached},
         {"next_token", Json::array({{{"n_decoded", std::max<std::int64_t>(0, view.tokens - view.prompt_tokens)}}})}});
  }
  while (list.size() < static_cast<std::size_t>(slots))
    list.push_back({{"id", list.size()}, {"n_ctx", context}, {"speculative", false}, {"is_processing", false}});
  return list;
}

}  // namespace kvasir::server
