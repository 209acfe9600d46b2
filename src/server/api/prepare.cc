#include "server/api/prepare.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/status.h"
#include "retention/policy_spec.h"

namespace kvasir::server {
namespace {

// Server settings that a refusal may name, and the text added for each.
constexpr std::pair<std::string_view, std::string_view> kOfServer[] = {{"kv_memory", " [the server's --kv-memory]"},
                                                                       {"demote_size", " [the server's --demote-size]"},
                                                                       {"demote_dir", " [the server's --demote-dir]"}};

// Most bytes of text in a request of a session, because it is rendered and tokenized between two passes.
constexpr std::size_t kMostSessionText = std::size_t{256} << 10;

Status check_session_text(const ApiRequest& request) {
  std::size_t bytes = 0;
  for (const ApiPrompt& prompt : request.prompts) bytes += prompt.text.size() + 4 * prompt.tokens.size();
  for (const Message& message : request.options.messages) bytes += message.content.size();
  if (bytes <= kMostSessionText) return {};
  return invalid_argument(
             "a request of a session may bring {} bytes of text, and this one has {}; send it in several requests",
             kMostSessionText, bytes)
      .about({"session"});
}

// Whether a field is present and not its default.
bool asks(const nlohmann::json& json, const char* field, int usual) {
  const auto found = json.find(field);
  if (found == json.end() || found->is_null() || *found == false) return false;
  return !found->is_number_integer() || *found != usual;
}

// Refuses fields about generation: POST /v1/sessions/{id} only reads text and answers with the session.
Status check_session_route(const nlohmann::json& json) {
  constexpr std::pair<const char*, int> kFields[] = {
      {"n", 1},      {"best_of", 1}, {"max_tokens", 0}, {"max_completion_tokens", 0},
      {"stream", 0}, {"echo", 0},    {"logprobs", 0},   {"top_logprobs", 0}};
  for (const auto& [field, usual] : kFields)
    if (asks(json, field, usual))
      return invalid_argument(
                 "this route generates nothing, so '{}' has no effect; omit it, or name the session in a "
                 "completion",
                 field)
          .about({field});
  return {};
}

// Refuses options of a session that is only restored, which runs as it was saved.
Status check_restore(const nlohmann::json& json) {
  if (const auto kv = json.find("kv"); kv != json.end() && kv->is_object())
    for (const auto& [field, name] :
         {std::pair{"policy", "kv.policy"}, std::pair{"codec", "kv.codec"}, std::pair{"demote", "kv.demote"}})
      if (kv->contains(field))
        return invalid_argument("a session keeps its policy and codec, so '{}' has no effect; omit it", name)
            .about({name});
  return {};
}

// Refuses pin and ttl: a session's text is in its file, not in the prefix cache.
Status check_no_prefix(const nlohmann::json& json, KvHints& hints) {
  if (const auto kv = json.find("kv"); kv != json.end() && kv->is_object())
    for (const auto& [field, name] : {std::pair{"pin", "kv.pin"}, std::pair{"ttl", "kv.ttl"}})
      if (asks(*kv, field, 0))
        return invalid_argument("a session leaves no cached prefix, so '{}' has no effect; omit it", name)
            .about({name});
  for (KvHints::Action& action : hints.actions) {
    if (action.outcome != "applied") continue;
    action.outcome = "no_op";
    action.reason = "a session leaves no cached prefix";
  }
  return {};
}

// Sets the limit of tokens if the client gave none: the rest of the context or of memory, or, under a policy that
// neither ends, the trained context.
Status limit(const StepThread& steps, RequestOptions& options, ReadyPrompt& ready) {
  PlanRequest request;
  request.policy = options.policy;
  request.protect = options.protect;
  request.codec = options.codec;
  request.prompt = static_cast<std::int64_t>(ready.prompt.tokens.size());
  const Result<RequestPlan> plan = steps.plan(request);
  if (!plan.ok() || !plan->refusal.ok()) return in_body(plan.ok() ? plan->refusal : plan.status());
  ready.most_tokens = plan->most_tokens;
  if (plan->endless) options.generate.max_tokens = plan->most_tokens;
  return {};
}

// Checks that every prompt can run, so that none is refused after the answer has begun.
Status check_all_fit(const StepThread& steps, const RequestOptions& options, int tenant,
                     const std::vector<ReadyPrompt>& prompts) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    PlanRequest request{.policy = options.policy, .codec = options.codec, .max_tokens = 0, .tenant = tenant};
    request.prompt = static_cast<std::int64_t>(prompts[i].prompt.tokens.size());
    const Result<RequestPlan> plan = steps.plan(request);
    const Status refusal = plan.ok() ? plan->refusal : plan.status();
    if (!refusal.ok())
      return in_body(
          refusal.with_message(fmt::format("prompt {} of {}: {}", i + 1, prompts.size(), refusal.message())));
  }
  return {};
}

Result<ReadyPrompt> ready_prompt(const StepThread& steps, const ApiRequest& request, RequestOptions options) {
  ReadyPrompt ready;
  Result<PromptTokens> prompt = steps.text().encode_prompt(options);
  if (!prompt.ok()) return in_body(prompt.status());
  ready.prompt = std::move(*prompt);
  if (!request.echo) return ready;
  ready.echo = std::move(options.prompt);
  if (!options.tokens.empty()) {
    KVASIR_ASSIGN_OR_RETURN(ready.echo, steps.text().decode(ready.prompt.tokens, true));
  }
  if (!request.logprobs) return ready;
  for (const std::int32_t token : ready.prompt.tokens) {
    KVASIR_ASSIGN_OR_RETURN(ready.pieces.emplace_back(), steps.text().bytes_of(token));
  }
  return ready;
}

}  // namespace

Status in_body(const Status& status) {
  static constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
      {"template_arguments", "chat_template_kwargs"},
      {"tokens", "prompt"},
      {"policy", "kv.policy"},
      {"codec", "kv.codec"},
      {"demote", "kv.demote"},
      {"samples", "n"}};
  static constexpr auto kSameNames = std::to_array<std::string_view>(
      {"prompt", "messages", "tools", "session", "max_tokens", "seed", "stop", "logprobs", "temperature", "top_k",
       "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "priority"});
  if (status.ok()) return status;
  for (const auto& [setting, said] : kOfServer)
    if (std::ranges::find(status.settings(), setting) != status.settings().end() && !status.message().ends_with(said))
      return in_body(status.with_message(status.message() + std::string(said)));
  for (const std::string_view setting : status.settings()) {
    for (const auto& [engine, body] : kOtherNames)
      if (engine == setting) return Status(status).about({body});
    for (const std::string_view name : kSameNames)
      if (name == setting) return Status(status).about({name});
  }
  return Status(status).about({});
}

Status unknown_model(const std::string& wanted, const std::string& served) {
  return make_status(StatusCode::kNotFound, "there is no model '{}' here; there is '{}'", wanted.substr(0, 200), served)
      .about({"model"});
}

Result<ReadyRequest> prepare(std::string_view body, const Preparation& common, const StepThread& steps) {
  ReadyRequest ready;
  {
    KVASIR_ASSIGN_OR_RETURN(nlohmann::json json, parse_body(body.empty() && !common.session.empty() ? "{}" : body));
    if (!common.session.empty()) {
      ready.restores_only = !json.contains("prompt") && !json.contains("messages");
      KVASIR_RETURN_IF_ERROR(check_session_route(json));
      if (ready.restores_only) KVASIR_RETURN_IF_ERROR(check_restore(json));
      if (const auto named = json.find("session"); named != json.end() && !named->is_null() && *named != common.session)
        return invalid_argument("the path names the session '{}', and 'session' another; omit 'session'",
                                common.session)
            .about({"session"});
      for (const char* field : {"stream", "echo", "logprobs", "top_logprobs", "max_completion_tokens"})
        json.erase(field);
      json["session"] = common.session;
      json["max_tokens"] = 0;
      if (ready.restores_only) json["prompt"] = "-";  // which is not read
    }
    const bool chat = common.session.empty() ? common.chat : json.contains("messages");
    KVASIR_ASSIGN_OR_RETURN(ready.request, read_request(json, chat, common.sampling));
    if (!ready.request.session.empty()) KVASIR_RETURN_IF_ERROR(check_no_prefix(json, ready.request.hints));
  }
  RequestOptions& options = ready.request.options;
  if (!ready.request.session.empty()) {
    KVASIR_RETURN_IF_ERROR(check_session_text(ready.request));
    // Only the session knows how much of its context is left; generation ends when it is used up.
    if (options.generate.max_tokens < 0) options.generate.max_tokens = steps.model().context;
    if (!options.messages.empty()) {
      KVASIR_ASSIGN_OR_RETURN(options.protect, steps.text().system_tokens(options.messages));
    }
    return ready;
  }
  if (options.policy.empty()) options.policy = common.policy;
  options.policy = with_demotion(options.policy, std::exchange(options.demote, {}));
  if (ready.request.chat) {
    KVASIR_ASSIGN_OR_RETURN(ready.prompts.emplace_back(), ready_prompt(steps, ready.request, options));
    options.protect = ready.prompts.back().prompt.system_tokens;
    options.generate.show_special = ready.prompts.back().prompt.answer != nullptr;
    options.messages.clear();
    options.template_arguments.clear();
    options.tools.clear();
  }
  for (ApiPrompt& prompt : ready.request.prompts) {
    RequestOptions one;
    one.prompt = std::move(prompt.text);
    one.tokens = std::move(prompt.tokens);
    one.parse_special = options.parse_special;
    KVASIR_ASSIGN_OR_RETURN(ready.prompts.emplace_back(), ready_prompt(steps, ready.request, std::move(one)));
  }
  ready.request.prompts.clear();
  if (ready.prompts.size() > 1) KVASIR_RETURN_IF_ERROR(check_all_fit(steps, options, common.tenant, ready.prompts));
  if (options.generate.max_tokens < 0)
    for (ReadyPrompt& prompt : ready.prompts) KVASIR_RETURN_IF_ERROR(limit(steps, options, prompt));
  return ready;
}

}  // namespace kvasir::server
