#include "server/api/text_routes.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "retention/policy_spec.h"
#include "server/api/api_request.h"
#include "server/api/api_response.h"
#include "server/api/prepare.h"
#include "server/api/text_answer.h"
#include "server/fields/json_fields.h"
#include "server/models/asked_model.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

// Reads the prompts of a body: of a chat, all that a completion would write into its prompt.
Result<ApiRequest> read_body_prompts(const Exchange& exchange, const Json& json, bool chat) {
  KVASIR_ASSIGN_OR_RETURN(ApiRequest request, read_prompts(json, chat));
  restore_order(exchange.request.body, request);
  return request;
}

// Returns the tokens of each prompt of a body.
Result<std::vector<PromptTokens>> encode_all(const ModelText& text, ApiRequest request) {
  std::vector<PromptTokens> all;
  if (request.chat) {
    Result<PromptTokens> encoded = text.encode_prompt(request.options);
    if (!encoded.ok()) return in_body(encoded.status());
    all.push_back(std::move(*encoded));
  }
  for (ApiPrompt& prompt : request.prompts) {
    RequestOptions options;
    options.prompt = std::move(prompt.text);
    options.tokens = std::move(prompt.tokens);
    options.parse_special = request.options.parse_special;
    Result<PromptTokens> encoded = text.encode_prompt(options);
    if (!encoded.ok()) return in_body(encoded.status());
    all.push_back(std::move(*encoded));
  }
  return all;
}

// Parses the body.
Result<Json> parse(const Exchange& exchange) {
  KVASIR_ASSIGN_OR_RETURN(Json json, parse_body(exchange.request.body));
  std::string model;  // which has been chosen by now
  KVASIR_RETURN_IF_ERROR(read_field(json, "model", model));
  return json;
}

// As llama-server: a piece that is no text is a list of its bytes.
Result<std::string> tokenize_content(const Served& model, const Json& json) {
  bool special = false, parse_special = true, pieces = false;
  std::string content;
  for (const char* field : {"prompt", "messages"})
    if (find_field(json, field) != nullptr)
      return invalid_argument("'content' and '{}' are both given; omit one of them", field).about({"content"});
  KVASIR_RETURN_IF_ERROR(read_field(json, "content", content));
  KVASIR_RETURN_IF_ERROR(read_field(json, "add_special", special));
  KVASIR_RETURN_IF_ERROR(read_field(json, "parse_special", parse_special));
  KVASIR_RETURN_IF_ERROR(read_field(json, "with_pieces", pieces));
  KVASIR_ASSIGN_OR_RETURN(const auto tokens, model.steps.text().encode(content, special, parse_special));
  if (!pieces) return text_of({{"tokens", tokens}});
  Json list = Json::array();
  for (const std::int32_t token : tokens) {
    KVASIR_ASSIGN_OR_RETURN(const std::string bytes, model.steps.text().bytes_of(token));
    Json piece = bytes;
    if (token_name(bytes) != bytes) piece = std::vector<std::uint8_t>(bytes.begin(), bytes.end());
    list.push_back({{"id", token}, {"piece", std::move(piece)}});
  }
  return text_of({{"tokens", std::move(list)}});
}

Result<std::string> tokenize(const Served& model, const Exchange& exchange) {
  KVASIR_ASSIGN_OR_RETURN(Json json, parse(exchange));
  if (find_field(json, "content") != nullptr) return tokenize_content(model, json);
  const bool chat = find_field(json, "messages") != nullptr;
  if (chat && find_field(json, "prompt") != nullptr)
    return invalid_argument("'prompt' and 'messages' are both given; omit one of them").about({"prompt"});
  bool special = true, parse_special = true, strings = false;
  KVASIR_RETURN_IF_ERROR(read_field(json, "add_special_tokens", special));
  KVASIR_RETURN_IF_ERROR(read_field(json, "parse_special", parse_special));
  KVASIR_RETURN_IF_ERROR(read_field(json, "return_token_strs", strings));
  json.erase("add_special_tokens");
  const ModelText& text = model.steps.text();
  std::vector<std::int32_t> tokens;
  if (chat) {
    KVASIR_ASSIGN_OR_RETURN(ApiRequest request, read_body_prompts(exchange, json, true));
    KVASIR_ASSIGN_OR_RETURN(auto all, encode_all(text, std::move(request)));
    tokens = std::move(all.front().tokens);
  } else {
    const Json* prompt = find_field(json, "prompt");
    if (prompt == nullptr) return invalid_argument("give 'prompt', a string, or 'messages'").about({"prompt"});
    if (!prompt->is_string()) return wrong_field("prompt", "a string");
    KVASIR_ASSIGN_OR_RETURN(tokens, text.encode(prompt->get_ref<const std::string&>(), special, parse_special));
  }
  Json answer = {{"tokens", tokens}, {"count", tokens.size()}, {"max_model_len", model.steps.model().context}};
  if (strings) {
    Json list = Json::array();
    for (const std::int32_t token : tokens) {
      KVASIR_ASSIGN_OR_RETURN(const std::string bytes, text.bytes_of(token));
      list.push_back(token_name(bytes));
    }
    answer["token_strs"] = std::move(list);
  }
  return text_of(answer);
}

Result<std::string> detokenize(const Served& model, const Exchange& exchange) {
  KVASIR_ASSIGN_OR_RETURN(const Json json, parse(exchange));
  const Json* list = find_field(json, "tokens");
  if (list == nullptr || !list->is_array()) return wrong_field("tokens", "a list of token ids");
  std::vector<std::int32_t> tokens;
  for (const Json& each : *list) {
    const std::optional<std::int64_t> token = whole_number(each);
    if (!token || *token < 0 || *token > std::numeric_limits<std::int32_t>::max())
      return wrong_field("tokens", "a list of token ids");
    tokens.push_back(static_cast<std::int32_t>(*token));
  }
  KVASIR_ASSIGN_OR_RETURN(std::string prompt, model.steps.text().decode(tokens, true));
  return text_of({{"prompt", prompt}, {"content", prompt}});
}

Result<std::string> render_completion(const Served& model, const Exchange& exchange) {
  KVASIR_ASSIGN_OR_RETURN(const Json json, parse(exchange));
  KVASIR_ASSIGN_OR_RETURN(ApiRequest request, read_body_prompts(exchange, json, false));
  KVASIR_ASSIGN_OR_RETURN(const auto all, encode_all(model.steps.text(), std::move(request)));
  Json answer = Json::array();
  for (const PromptTokens& prompt : all) answer.push_back({{"token_ids", prompt.tokens}});
  return text_of(answer);
}

Result<std::string> render_chat(const Served& model, const Exchange& exchange) {
  KVASIR_ASSIGN_OR_RETURN(const Json json, parse(exchange));
  KVASIR_ASSIGN_OR_RETURN(ApiRequest request, read_body_prompts(exchange, json, true));
  KVASIR_ASSIGN_OR_RETURN(const auto all, encode_all(model.steps.text(), std::move(request)));
  return text_of({{"token_ids", all.front().tokens}});
}

Result<std::string> plan(const Served& model, const Exchange& exchange) {
  KVASIR_ASSIGN_OR_RETURN(const Json json, parse(exchange));
  RequestOptions options;
  KVASIR_RETURN_IF_ERROR(read_kv(json, options));
  PlanRequest request;
  const Result<std::string> policy =
      with_thoughts(options.policy.empty() ? model.defaults.policy : options.policy, options.thoughts);
  if (!policy.ok()) return in_body(policy.status());
  request.policy = with_demotion(*policy, options.demote);
  request.codec = options.codec;
  request.quality = options.quality;
  request.tenant = exchange.caller.tenant_number;
  KVASIR_RETURN_IF_ERROR(read_field(json, "draft", request.draft));
  if (request.draft.empty()) request.draft = model.defaults.draft;
  KVASIR_RETURN_IF_ERROR(read_whole(json, "prompt_tokens", 1, kMostGenerated, request.prompt));
  KVASIR_RETURN_IF_ERROR(read_whole(json, "max_tokens", 0, kMostGenerated, request.max_tokens));
  KVASIR_RETURN_IF_ERROR(read_whole(json, "n", 1, kMostSamples, request.samples));
  constexpr const char* kPrompts[] = {"prompt_tokens", "prompt", "messages"};
  const auto given = std::ranges::count_if(kPrompts, [&](const char* field) { return find_field(json, field); });
  if (given == 0)
    return invalid_argument("give 'prompt_tokens', a number, or a prompt: 'prompt' or 'messages'")
        .about({"prompt_tokens"});
  if (given > 1)
    return invalid_argument("more than one of 'prompt_tokens', 'prompt' and 'messages' is given; omit all but one")
        .about({find_field(json, "prompt_tokens") != nullptr ? "prompt_tokens" : "prompt"});
  if (find_field(json, "prompt_tokens") == nullptr) {
    KVASIR_ASSIGN_OR_RETURN(ApiRequest prompts,
                            read_body_prompts(exchange, json, find_field(json, "messages") != nullptr));
    KVASIR_ASSIGN_OR_RETURN(const auto all, encode_all(model.steps.text(), std::move(prompts)));
    if (all.size() != 1) return wrong_field("prompt", "one prompt");
    request.prompt = static_cast<std::int64_t>(all.front().tokens.size());
    request.protect = all.front().system_tokens;
  }
  const Result<RequestPlan> found = model.steps.plan(request);
  if (!found.ok()) return in_body(found.status());
  const RequestPlan& plan = *found;
  // Only callers that may see the whole server learn how much memory others leave free.
  Json used, free, fits_now;
  if (exchange.caller.sees_all) {
    const std::uint64_t bytes = model.steps.report().engine.cache.bytes;
    const std::uint64_t rest = plan.budget > bytes ? plan.budget - bytes : 0;
    used = bytes;
    free = rest;
    fits_now = plan.refusal.ok() && plan.bytes <= rest;
  }
  return text_of({{"object", "kv.plan"},
                  {"policy", plan.policy},
                  {"codec", plan.codec},
                  {"prompt", plan.prompt},
                  {"max_tokens", plan.max_tokens},
                  {"max_tokens_possible", plan.most_tokens},
                  {"endless", plan.endless},
                  {"tokens", plan.tokens},
                  {"n", request.samples},
                  {"trained_context", model.steps.model().context},
                  {"tokens_seen_max", plan.tokens_seen_max},
                  {"kv_pages", plan.pages},
                  {"kv_page_bytes", plan.page_bytes},
                  {"kv_open_pages", plan.open_pages},
                  {"kv_open_page_bytes", plan.open_page_bytes},
                  {"kv_table_bytes", plan.table_bytes},
                  {"policy_bytes", plan.policy_bytes},
                  {"demoted_bytes", plan.demoted_bytes},
                  {"offload_bytes", plan.offload_bytes},
                  {"offload_file_bytes", plan.offload_file_bytes},
                  {"quality_bytes", plan.quality_bytes},
                  {"kv_bytes", plan.bytes},
                  {"draft_kv_bytes", plan.draft_bytes},
                  {"kv_exact", plan.exact},
                  {"kv_bytes_per_token", plan.bytes_per_token},
                  {"kv_budget", plan.budget},
                  {"kv_used", used},
                  {"kv_free", free},
                  {"fits", plan.refusal.ok() && plan.bytes <= plan.budget},
                  {"fits_now", fits_now},
                  {"refusal", plan.refusal.ok() ? Json() : Json(plan.refusal.message())}});
}

}  // namespace

void TextRoutes::add_routes(Router& router) {
  using Work = Result<std::string> (*)(const Served&, const Exchange&);
  constexpr std::pair<const char*, Work> kRoutes[] = {{"/tokenize", tokenize},
                                                      {"/detokenize", detokenize},
                                                      {"/v1/completions/render", render_completion},
                                                      {"/v1/chat/completions/render", render_chat},
                                                      {"/v1/kv/plan", plan}};
  for (const auto& [path, work] : kRoutes)
    router.add("POST", path, [this, work = work](Exchange exchange) {
      const Result<std::string> name = asked_model(exchange.request.body);
      answer_of_model(models_, texts_, std::move(exchange), name, work);
    });
}

}  // namespace kvasir::server
