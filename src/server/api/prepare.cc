#include "server/api/prepare.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/status.h"
#include "retention/policy_spec.h"
#include "server/fields/grammar_fields.h"

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
  if (json.contains("lora"))
    return invalid_argument("a session keeps its adapters, so 'lora' has no effect; omit it").about({"lora"});
  if (const auto kv = json.find("kv"); kv != json.end() && kv->is_object())
    for (const auto& [field, name] : {std::pair{"policy", "kv.policy"}, std::pair{"codec", "kv.codec"},
                                      std::pair{"demote", "kv.demote"}, std::pair{"quality", "kv.quality"}})
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
  request.quality = options.quality;
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
    request.quality = options.quality;
    request.prompt = static_cast<std::int64_t>(prompts[i].prompt.tokens.size());
    const Result<RequestPlan> plan = steps.plan(request);
    const Status refusal = plan.ok() ? plan->refusal : plan.status();
    if (!refusal.ok())
      return in_body(
          refusal.with_message(fmt::format("prompt {} of {}: {}", i + 1, prompts.size(), refusal.message())));
  }
  return {};
}

// Log-probabilities of an answer that are kept until it has ended: most of a prompt's tokens, and most of generated
// ones where the request asks for more than kFewLogprobs of each.
constexpr std::int64_t kMostPromptEntries = std::int64_t{1} << 19;
constexpr std::int64_t kMostEntries = std::int64_t{1} << 21;
constexpr int kFewLogprobs = 20;

// Refuses log-probabilities that would take too much memory.
Status check_reports(const ReadyRequest& ready) {
  const RequestOptions& options = ready.request.options;
  const GenerateOptions& generate = options.generate;
  std::int64_t read = 0, most = 0;  // tokens of all prompts and texts
  for (const ReadyPrompt& prompt : ready.prompts) {
    const std::int64_t limit = generate.max_tokens < 0 ? prompt.most_tokens : generate.max_tokens;
    read += std::ssize(prompt.prompt.tokens);
    most += std::min(limit, kMostEntries) * options.samples;
  }
  if (generate.prompt_logprobs >= 0 && read > kMostPromptEntries / (generate.prompt_logprobs + 1))
    return invalid_argument(
               "log-probabilities of {} prompt tokens with {} likeliest each are too many for one answer; ask for "
               "fewer, "
               "or send a shorter prompt",
               read, generate.prompt_logprobs)
        .about({ready.request.prompt_logprobs >= 0 ? "prompt_logprobs" : "logprobs"});
  if (generate.logprobs > kFewLogprobs && most > kMostEntries / (generate.logprobs + 1))
    return invalid_argument(
               "log-probabilities of up to {} tokens with {} likeliest each are too many for one answer; ask for {} or "
               "fewer, or give a smaller 'max_tokens'",
               most, generate.logprobs, kFewLogprobs)
        .about({ready.request.chat ? "top_logprobs" : "logprobs"});
  return {};
}

// Cuts a prompt to the tokens that the request keeps of it, and returns whether it did. Errors: kInvalidArgument.
Result<bool> truncate(const ApiRequest& request, std::int64_t context, PromptTokens& prompt) {
  if (!request.truncate_prompt) return false;
  std::int64_t keep = *request.truncate_prompt;
  if (keep < 0)
    keep = std::max<std::int64_t>(1, context - std::max<std::int64_t>(1, request.options.generate.max_tokens));
  const std::int64_t cut = std::ssize(prompt.tokens) - keep;
  if (cut <= 0) return false;
  prompt.lasting_tokens = 0;
  if (request.keeps_first && request.chat)
    return invalid_argument(
               "'truncation_side' is \"right\", which would cut off the opening of the answer: the chat has {} tokens "
               "more than are kept; give \"left\", or fewer messages",
               cut)
        .about({"truncation_side"});
  if (request.keeps_first) {
    prompt.tokens.resize(static_cast<std::size_t>(keep));
    prompt.system_tokens = std::min(prompt.system_tokens, keep);
  } else {
    prompt.tokens.erase(prompt.tokens.begin(), prompt.tokens.begin() + static_cast<std::ptrdiff_t>(cut));
    prompt.system_tokens = std::max<std::int64_t>(0, prompt.system_tokens - cut);
  }
  return true;
}

// Returns the text of the assistant's message that the answer continues.
Result<std::string> continued_message(const RequestOptions& options) {
  const Message& last = options.messages.back();
  const bool continues = options.prompt_end == PromptEnd::kAuto || options.prompt_end == PromptEnd::kContinue;
  if (last.role == "assistant" && continues) return last.content;
  return invalid_argument(
             "'echo' on a chat shows the assistant's message that the answer continues, and the last one is the {}'s; "
             "omit it",
             last.role.substr(0, 64))
      .about({"echo"});
}

// Returns an error with a body's field as its setting; that of a grammar or of a budget is the field that gave it.
Status about_field(const ApiRequest& request, const Status& status) {
  const auto about = [&status](const char* field) {
    return status.with_message(fmt::format("'{}': {}", field, status.message())).about({field});
  };
  for (const std::string_view setting : status.settings()) {
    if (setting == "thought_budget") return about(request.budget_field);
    const bool of_tools = setting == "tools";
    if (!of_tools && setting != "grammar" && setting != "json_schema") continue;
    const Status said = of_tools ? in_body(status) : about(request.grammar_field);
    if (said.code() != StatusCode::kResourceExhausted) return said;
    // A grammar that is too large does not overflow the context, as clients would read that code.
    return unsupported("{}", said.message()).about({of_tools ? "tools" : std::string_view(request.grammar_field)});
  }
  return in_body(status);
}

bool demands_call(const RequestOptions& options) {
  return options.tool_choice == ToolChoice::kRequired || options.tool_choice == ToolChoice::kNamed;
}

// The grammar of a session's answer, whose prompt only the session can write.
Status compile_for_session(const ModelText& text, ApiRequest& request) {
  if (!request.options.grammar) return {};
  Result<std::shared_ptr<const Grammar>> grammar =
      text.compile(*request.options.grammar, request.options.stop_compiling);
  if (!grammar.ok()) return about_field(request, Status(grammar.status()).about({"grammar"}));
  request.options.generate.grammar = std::move(*grammar);
  return {};
}

Result<ReadyPrompt> ready_prompt(const StepThread& steps, const ApiRequest& request, RequestOptions options) {
  ReadyPrompt ready;
  Result<PromptTokens> prompt = steps.text().encode_prompt(options);
  if (!prompt.ok()) return about_field(request, prompt.status());
  ready.prompt = std::move(*prompt);
  KVASIR_ASSIGN_OR_RETURN(const bool cut, truncate(request, steps.model().context, ready.prompt));
  if (request.return_token_ids) ready.ids = ready.prompt.tokens;
  if (!request.echo) return ready;
  if (request.chat) {
    KVASIR_ASSIGN_OR_RETURN(ready.echo, continued_message(options));
    return ready;
  }
  ready.echo = std::move(options.prompt);
  if (!options.tokens.empty() || cut) {
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
      {"thoughts", "kv.thoughts"},
      {"quality", "kv.quality"},
      {"samples", "n"},
      {"penalty_window", "repeat_last_n"},
      {"dry_window", "dry_penalty_last_n"}};
  static constexpr auto kSameNames = std::to_array<std::string_view>({"prompt",
                                                                      "lora",
                                                                      "messages",
                                                                      "tools",
                                                                      "tool_choice",
                                                                      "session",
                                                                      "max_tokens",
                                                                      "seed",
                                                                      "stop",
                                                                      "logprobs",
                                                                      "temperature",
                                                                      "top_k",
                                                                      "top_p",
                                                                      "min_p",
                                                                      "repetition_penalty",
                                                                      "frequency_penalty",
                                                                      "presence_penalty",
                                                                      "logit_bias",
                                                                      "priority",
                                                                      "top_n_sigma",
                                                                      "typical_p",
                                                                      "xtc_probability",
                                                                      "xtc_threshold",
                                                                      "dynatemp_range",
                                                                      "dynatemp_exponent",
                                                                      "dry_multiplier",
                                                                      "dry_base",
                                                                      "dry_allowed_length",
                                                                      "min_tokens",
                                                                      "stop_token_ids",
                                                                      "allowed_token_ids",
                                                                      "bad_words",
                                                                      "draft",
                                                                      "prompt_logprobs"});
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

Result<PromptTokens> encode_request_text(const ModelText& text, const RequestOptions& options) {
  Result<PromptTokens> prompt = text.encode_prompt(options);
  return prompt.ok() ? std::move(prompt) : in_body(prompt.status());
}

Result<ReadyRequest> begin_request(std::string_view body, const Preparation& common, const Served& model) {
  const StepThread& steps = model.steps;
  ReadyRequest ready;
  KVASIR_ASSIGN_OR_RETURN(nlohmann::json json, parse_body(body.empty() && !common.session.empty() ? "{}" : body));
  if (!common.session.empty()) {
    ready.restores_only = !json.contains("prompt") && !json.contains("messages");
    KVASIR_RETURN_IF_ERROR(check_session_route(json));
    if (ready.restores_only) KVASIR_RETURN_IF_ERROR(check_restore(json));
    if (const auto named = json.find("session"); named != json.end() && !named->is_null() && *named != common.session)
      return invalid_argument("the path names the session '{}', and 'session' another; omit 'session'", common.session)
          .about({"session"});
    for (const char* field : {"stream", "echo", "logprobs", "top_logprobs", "max_completion_tokens"}) json.erase(field);
    json["session"] = common.session;
    json["max_tokens"] = 0;
    if (ready.restores_only) json["prompt"] = "-";  // which is not read
  }
  const ReadContext context{common.exchange->request, common.exchange->caller, steps.text(), steps.model(),
                            model.defaults.sampling};
  KVASIR_ASSIGN_OR_RETURN(ReadBody read, common.dialect->read(json, context));
  ready.request = std::move(read.request);
  ready.writer = std::move(read.writer);
  ready.at_once = std::move(read.at_once);
  if (!ready.at_once.empty()) return ready;
  if (!ready.request.session.empty()) KVASIR_RETURN_IF_ERROR(check_no_prefix(json, ready.request.hints));
  KVASIR_RETURN_IF_ERROR(check_grammar_with_tools(ready.request));
  restore_order(body, ready.request);
  ready.request.options.grammar = std::move(ready.request.grammar);
  return ready;
}

bool needs_grammar(const ReadyRequest& ready) {
  const RequestOptions& options = ready.request.options;
  return options.grammar || demands_call(options) || options.tools.find("\"strict\"") != std::string::npos;
}

Status finish_request(ReadyRequest& ready, const Preparation& common, const Served& model, std::stop_token stop) {
  const StepThread& steps = model.steps;
  RequestOptions& options = ready.request.options;
  options.stop_compiling = std::move(stop);
  if (options.generate.draft.empty()) options.generate.draft = model.defaults.draft;
  if (!ready.request.session.empty()) {
    KVASIR_RETURN_IF_ERROR(check_session_text(ready.request));
    KVASIR_RETURN_IF_ERROR(compile_for_session(steps.text(), ready.request));
    // Only the session knows how much of its context is left; generation ends when it is used up.
    if (options.generate.max_tokens < 0) options.generate.max_tokens = steps.model().context;
    if (!options.messages.empty()) {
      KVASIR_ASSIGN_OR_RETURN(options.protect, steps.text().system_tokens(options.messages));
    }
    return {};
  }
  if (!ready.request.chat && options.thoughts == "drop")
    return invalid_argument("'kv.thoughts' is for chats, whose template marks thoughts; omit it")
        .about({"kv.thoughts"});
  Result<std::string> policy = with_thoughts(options.policy.empty() ? model.defaults.policy : options.policy,
                                             std::exchange(options.thoughts, {}));
  if (!policy.ok()) return in_body(policy.status());
  options.policy = std::move(*policy);
  options.policy = with_demotion(options.policy, std::exchange(options.demote, {}));
  // An answer that must be calls has no text in which a stop may occur, and one within a call would break it.
  if (demands_call(options)) {
    options.generate.stop.clear();
    options.generate.stop_tokens.clear();
  }
  if (ready.request.chat) {
    KVASIR_ASSIGN_OR_RETURN(ready.prompts.emplace_back(), ready_prompt(steps, ready.request, options));
    options.protect = std::max(options.protect, ready.prompts.back().prompt.system_tokens);
    options.generate.show_special = ready.prompts.back().prompt.answer != nullptr;
    options.generate.grammar = ready.prompts.back().prompt.grammar;
    options.generate.thoughts = ready.prompts.back().prompt.thoughts;
    if (options.generate.thoughts == nullptr)
      for (std::string& field : ready.request.thinking_fields) ready.request.ignored.push_back(std::move(field));
    options.messages.clear();
    options.template_arguments.clear();
    options.tools.clear();
  }
  for (ApiPrompt& prompt : ready.request.prompts) {
    RequestOptions one;
    one.prompt = std::move(prompt.text);
    one.tokens = std::move(prompt.tokens);
    one.parse_special = options.parse_special;
    one.grammar = options.grammar;
    one.stop_compiling = options.stop_compiling;
    KVASIR_ASSIGN_OR_RETURN(ready.prompts.emplace_back(), ready_prompt(steps, ready.request, std::move(one)));
  }
  if (!ready.request.prompts.empty()) options.generate.grammar = ready.prompts.back().prompt.grammar;
  options.grammar.reset();
  ready.request.prompts.clear();
  if (ready.prompts.size() > 1)
    KVASIR_RETURN_IF_ERROR(check_all_fit(steps, options, common.exchange->caller.tenant_number, ready.prompts));
  if (options.generate.max_tokens < 0)
    for (ReadyPrompt& prompt : ready.prompts) KVASIR_RETURN_IF_ERROR(limit(steps, options, prompt));
  return check_reports(ready);
}

}  // namespace kvasir::server
