#include "server/dialects/info_routes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "server/api/prepare.h"
#include "server/api/text_answer.h"
#include "server/dialects/anthropic.h"
#include "server/dialects/llama_server.h"
#include "server/dialects/ollama.h"
#include "server/fields/ignored_fields.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

constexpr int kMostSlots = 256;  // shown by /slots

// Whether the chat template has a place for tools.
bool takes_tools(const ModelText& text) {
  RequestOptions options;
  options.messages.push_back({"user", "x"});
  options.tools =
      R"([{"type":"function","function":{"name":"f","description":"","parameters":{"type":"object","properties":{}}}}])";
  return encode_request_text(text, options).ok();
}

}  // namespace

void InfoRoutes::add_routes(Router& router) {
  add(router, "/v1/messages/count_tokens", anthropic_error, &InfoRoutes::count_tokens);
  add(router, "/apply-template", llama_error, &InfoRoutes::apply_template);
  add(router, "/api/show", ollama_error, &InfoRoutes::show);
  const auto get = [&](std::string_view path, ErrorForm form, auto body) {
    router.add(
        "GET", path, [body](const Exchange& exchange) { exchange.send_json(200, text_of(body())); },
        Router::Access::kCallers, form);
  };
  get("/api/tags", ollama_error, [this] { return ollama_tags(steps_.model(), options_.model, options_.since); });
  get("/api/ps", ollama_error, [this] { return ollama_running(steps_.model(), options_.model); });
  get("/api/version", ollama_error, [this] { return Json{{"version", options_.version}}; });
  get("/props", llama_error, [this] {
    return llama_props(steps_.model(), options_.model, options_.version, options_.sampling, options_.slots);
  });
  router.add(
      "GET", "/slots", [this](Exchange exchange) { slots(std::move(exchange)); }, Router::Access::kCallers,
      llama_error);
  router.add(
      "GET", "/",
      [](const Exchange& exchange) { exchange.answer->send(200, "text/plain; charset=utf-8", "Kvasir is running\n"); },
      Router::Access::kAll);
}

void InfoRoutes::add(Router& router, std::string_view path, ErrorForm form, Work work) {
  router.add(
      "POST", path,
      [this, work](Exchange exchange) {
        answer_on(texts_, std::move(exchange), [this, work](Exchange& asked) { return (this->*work)(asked); });
      },
      Router::Access::kCallers, form);
}

Result<std::string> InfoRoutes::count_tokens(Exchange& exchange) const {
  KVASIR_ASSIGN_OR_RETURN(const Json body, parse_body(exchange.request.body));
  const ReadContext context{exchange.request, exchange.caller, steps_.text(), steps_.model(), options_.sampling};
  KVASIR_ASSIGN_OR_RETURN(const ApiRequest request, read_anthropic(body, context, true));
  if (!request.model.empty() && request.model != options_.model) return unknown_model(request.model, options_.model);
  KVASIR_ASSIGN_OR_RETURN(const PromptTokens prompt, encode_request_text(steps_.text(), request.options));
  if (!request.ignored.empty()) exchange.fields.emplace_back(kIgnoredHeader, ignored_header(request.ignored));
  return text_of({{"input_tokens", prompt.tokens.size()}});
}

// The text has no token that begins every prompt: /completion and /tokenize write it themselves.
Result<std::string> InfoRoutes::apply_template(Exchange& exchange) const {
  KVASIR_ASSIGN_OR_RETURN(const Json body, parse_body(exchange.request.body));
  KVASIR_ASSIGN_OR_RETURN(const ApiRequest request, read_prompts(body, true));
  KVASIR_ASSIGN_OR_RETURN(const PromptTokens prompt, encode_request_text(steps_.text(), request.options));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<std::int32_t> start, steps_.text().encode("", true));
  std::span<const std::int32_t> tokens = prompt.tokens;
  if (!start.empty() && !tokens.empty() && tokens.front() == start.front()) tokens = tokens.subspan(1);
  KVASIR_ASSIGN_OR_RETURN(std::string text, steps_.text().decode(tokens, true));
  return text_of({{"prompt", std::move(text)}});
}

Result<std::string> InfoRoutes::show(Exchange& exchange) const {
  KVASIR_ASSIGN_OR_RETURN(const Json body, parse_body(exchange.request.body));
  std::string name;
  for (const char* field : {"name", "model"}) KVASIR_RETURN_IF_ERROR(read_field(body, field, name));
  name = ollama_model(std::move(name));
  if (!name.empty() && name != options_.model) return unknown_model(name, options_.model);
  return text_of(ollama_show(steps_.model(), takes_tools(steps_.text()), options_.since));
}

// Shows the caller its own requests. With "?fail_on_no_slot=1" a server without a free place answers 503.
void InfoRoutes::slots(Exchange exchange) const {
  const auto shared = std::make_shared<Exchange>(std::move(exchange));
  const auto answer = [this, shared](const SequenceList& own, std::int64_t running) {
    if (shared->request.query.find("fail_on_no_slot=1") != std::string::npos && running >= options_.slots)
      return shared->refuse(503, "no slot is free now; try again later", "", {{"Retry-After", "1"}});
    shared->send_json(200, text_of(llama_slots(own, steps_.model().context, std::min(options_.slots, kMostSlots))));
  };
  const auto busy = [shared] {
    shared->refuse(503, "the server is busy; try again later", "", {{"Retry-After", "1"}});
  };
  const Status asked = steps_.ask(
      [this, shared, answer](Engine& engine) {
        SequenceList own = engine.sequences(shared->caller.tenant_number, kMostSlots);
        steps_.post([answer, own = std::move(own), running = engine.report().running] { answer(own, running); });
      },
      busy);
  if (!asked.ok()) busy();
}

}  // namespace kvasir::server
