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
#include "server/fields/lora_field.h"
#include "server/models/asked_model.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

constexpr int kMostSlots = 256;  // shown by /slots
constexpr std::size_t kMostAdapterBody = std::size_t{64} << 10;

// Whether the chat template has a place for tools.
bool takes_tools(const ModelText& text) {
  RequestOptions options;
  options.messages.push_back({"user", "x"});
  options.tools =
      R"([{"type":"function","function":{"name":"f","description":"","parameters":{"type":"object","properties":{}}}}])";
  return encode_request_text(text, options).ok();
}

Result<std::string> count_tokens(const Served& model, Exchange& exchange) {
  KVASIR_ASSIGN_OR_RETURN(const Json body, parse_body(exchange.request.body));
  const ModelText& text = model.steps.text();
  const ReadContext context{exchange.request, exchange.caller, text, model.steps.model(), model.defaults.sampling};
  KVASIR_ASSIGN_OR_RETURN(ApiRequest request, read_anthropic(body, context, true));
  restore_order(exchange.request.body, request);
  KVASIR_ASSIGN_OR_RETURN(const PromptTokens prompt, encode_request_text(text, request.options));
  if (!request.ignored.empty()) exchange.fields.emplace_back(kIgnoredHeader, ignored_header(request.ignored));
  return text_of({{"input_tokens", prompt.tokens.size()}});
}

// The text has no token that begins every prompt: /completion and /tokenize write it themselves.
Result<std::string> apply_template(const Served& model, const Exchange& exchange) {
  KVASIR_ASSIGN_OR_RETURN(const Json body, parse_body(exchange.request.body));
  KVASIR_ASSIGN_OR_RETURN(ApiRequest request, read_prompts(body, true));
  restore_order(exchange.request.body, request);
  const ModelText& text = model.steps.text();
  KVASIR_ASSIGN_OR_RETURN(const PromptTokens prompt, encode_request_text(text, request.options));
  KVASIR_ASSIGN_OR_RETURN(const std::vector<std::int32_t> start, text.encode("", true));
  std::span<const std::int32_t> tokens = prompt.tokens;
  if (!start.empty() && !tokens.empty() && tokens.front() == start.front()) tokens = tokens.subspan(1);
  KVASIR_ASSIGN_OR_RETURN(std::string written, text.decode(tokens, true));
  return text_of({{"prompt", std::move(written)}});
}

}  // namespace

void InfoRoutes::add_routes(Router& router) {
  using Work = Result<std::string> (*)(const Served&, Exchange&);
  const auto add = [&](std::string_view path, ErrorForm form, Work work) {
    router.add(
        "POST", path,
        [this, work](Exchange exchange) {
          const Result<std::string> name = asked_model(exchange.request.body);
          answer_of_model(models_, texts_, std::move(exchange), name, work);
        },
        Router::Access::kCallers, form);
  };
  add("/v1/messages/count_tokens", anthropic_error, count_tokens);
  add("/apply-template", llama_error,
      [](const Served& model, Exchange& exchange) { return apply_template(model, exchange); });
  const auto get = [&](std::string_view path, ErrorForm form, auto handler) {
    router.add("GET", path, handler, Router::Access::kCallers, form);
  };
  router.add(
      "POST", "/api/show", [this](Exchange exchange) { show(std::move(exchange)); }, Router::Access::kCallers,
      ollama_error);
  get("/api/tags", ollama_error, [this](const Exchange& exchange) {
    exchange.send_json(200, text_of(ollama_tags(models_.list(), options_.since)));
  });
  get("/api/ps", ollama_error,
      [this](const Exchange& exchange) { exchange.send_json(200, text_of(ollama_running(models_.list()))); });
  get("/api/version", ollama_error, [this](const Exchange& exchange) {
    exchange.send_json(200, text_of({{"version", options_.version}}));
  });
  get("/props", llama_error, [this](const Exchange& exchange) { props(exchange); });
  get("/slots", llama_error, [this](Exchange exchange) { slots(std::move(exchange)); });
  get("/lora-adapters", llama_error, [this](Exchange exchange) { list_adapters(std::move(exchange)); });
  // What it sets holds for every caller.
  router.add(
      "POST", "/lora-adapters", [this](Exchange exchange) { set_adapters(std::move(exchange)); },
      Router::Access::kOperators, llama_error);
  router.add(
      "GET", "/",
      [](const Exchange& exchange) { exchange.answer->send(200, "text/plain; charset=utf-8", "Kvasir is running\n"); },
      Router::Access::kAll);
}

// Loads no model that it can show: of one that is not loaded it says what the file's header told, without "tools",
// since whether a chat template takes them is found by rendering it.
void InfoRoutes::show(Exchange exchange) const {
  Result<std::string> named = asked_model(exchange.request.body);
  if (named.ok() && named->empty()) named = asked_model(exchange.request.body, "name");
  if (!named.ok()) return exchange.refuse(named.status());
  const std::string name = ollama_model(std::move(*named));
  const auto check = [](const Exchange& asked) -> Status {
    KVASIR_ASSIGN_OR_RETURN(const Json body, parse_body(asked.request.body));
    std::string text;
    for (const char* field : {"name", "model"}) KVASIR_RETURN_IF_ERROR(read_field(body, field, text));
    return {};
  };
  const std::optional<ModelDesk::Info> model = models_.find(name);
  if (model && model->served == nullptr && !model->summary.architecture.empty())
    return answer_on(
        texts_, std::move(exchange),
        [check, summary = model->summary, since = options_.since](const Exchange& asked) -> Result<std::string> {
          KVASIR_RETURN_IF_ERROR(check(asked));
          return text_of(ollama_show(summary, false, since));
        });
  answer_of_model(models_, texts_, std::move(exchange), name,
                  [check, since = options_.since](const Served& served, const Exchange& asked) -> Result<std::string> {
                    KVASIR_RETURN_IF_ERROR(check(asked));
                    return text_of(ollama_show(served.steps.model(), takes_tools(served.steps.text()), since));
                  });
}

std::optional<ModelDesk::Info> InfoRoutes::find(const Exchange& exchange) const {
  const Result<std::string> name = query_parameter(exchange.request.query, "model");
  if (!name.ok()) {
    exchange.refuse(name.status());
    return std::nullopt;
  }
  std::optional<ModelDesk::Info> found = models_.find(*name);
  if (!found) exchange.refuse(error_of_model(models_.unknown(*name)));
  return found;
}

void InfoRoutes::props(const Exchange& exchange) const {
  const std::optional<ModelDesk::Info> model = find(exchange);
  if (!model) return;
  // Nothing is known of a file that cannot be read.
  if (model->summary.architecture.empty() && !model->reason.empty()) return exchange.refuse(400, model->reason);
  exchange.send_json(200, text_of(llama_props(model->summary, model->defaults.name, options_.version,
                                              model->defaults.sampling, model->defaults.parallel)));
}

// Shows the caller its own requests. With "?fail_on_no_slot=1" a server without a free place answers 503.
void InfoRoutes::slots(Exchange exchange) const {
  const std::optional<ModelDesk::Info> model = find(exchange);
  if (!model) return;
  const int places = model->defaults.parallel;
  const auto shared = std::make_shared<Exchange>(std::move(exchange));
  const auto answer = [shared, places, context = model->summary.context](const SequenceList& own,
                                                                         std::int64_t running) {
    if (shared->request.query.find("fail_on_no_slot=1") != std::string::npos && running >= places)
      return shared->refuse(503, "no slot is free now; try again later", "", {{"Retry-After", "1"}});
    shared->send_json(200, text_of(llama_slots(own, context, std::min(places, kMostSlots))));
  };
  const auto lease = std::make_shared<ModelLease>(models_.look(model->defaults.name));
  if (!*lease) return answer({}, 0);
  const auto busy = [shared, lease] {
    shared->refuse(503, "the server is busy; try again later", "", {{"Retry-After", "1"}});
    lease->reset();
  };
  // The question is destroyed on the step thread, which must not be the one to give the lease back.
  StepThread& steps = (*lease)->steps;
  const auto told = [answer, lease](const SequenceList& own, std::int64_t running) {
    answer(own, running);
    lease->reset();
  };
  const Status asked = steps.ask(
      [&steps, tenant = shared->caller.tenant_number, told](Engine& engine) {
        SequenceList own = engine.sequences(tenant, kMostSlots);
        steps.post([told, own = std::move(own), running = engine.report().running] { told(own, running); });
      },
      busy);
  if (!asked.ok()) busy();
}

void InfoRoutes::list_adapters(Exchange exchange) const {
  const std::optional<ModelDesk::Info> model = find(exchange);
  if (!model) return;
  // Of a model that is not loaded: as it will be.
  if (model->served == nullptr) return exchange.send_json(200, text_of(llama_adapters(model->summary.adapters)));
  answer_adapters(std::move(exchange), model->defaults.name, [](Engine&) { return Status(); });
}

void InfoRoutes::set_adapters(Exchange exchange) const {
  const std::optional<ModelDesk::Info> model = find(exchange);
  if (!model) return;
  if (exchange.request.body.size() > kMostAdapterBody) return exchange.refuse(413, "the body is longer than 64 KiB");
  const Json body = Json::parse(exchange.request.body, nullptr, false);
  if (body.is_discarded()) return exchange.refuse(400, "the body is not valid JSON");
  Result<std::vector<AdapterScale>> scales = read_adapter_scales(body);
  if (!scales.ok()) return exchange.refuse(scales.status());
  if (model->served == nullptr)
    return exchange.refuse(400,
                           "the model is not loaded: its adapters get their scales from the server's options then; "
                           "send it a request first");
  answer_adapters(std::move(exchange), model->defaults.name,
                  [scales = std::move(*scales)](Engine& engine) { return engine.set_lora(scales); });
}

void InfoRoutes::answer_adapters(Exchange exchange, const std::string& model,
                                 std::function<Status(Engine&)> question) const {
  const auto shared = std::make_shared<Exchange>(std::move(exchange));
  const auto lease = std::make_shared<ModelLease>(models_.look(model));
  const auto busy = [shared, lease] {
    shared->refuse(503, "the server is busy; try again later", "", {{"Retry-After", "1"}});
    lease->reset();
  };
  if (!*lease) return busy();
  StepThread& steps = (*lease)->steps;
  const auto told = [shared, lease](const Status& status, const std::vector<AdapterSummary>& adapters) {
    status.ok() ? shared->send_json(200, text_of(llama_adapters(adapters))) : shared->refuse(status);
    lease->reset();
  };
  // The question is destroyed on the step thread, which must not be the one to give the lease back.
  const Status asked = steps.ask(
      [&steps, question = std::move(question), told](Engine& engine) {
        const Status status = question(engine);
        steps.post([told, status, adapters = engine.model().adapters] { told(status, adapters); });
      },
      busy);
  if (!asked.ok()) busy();
}

}  // namespace kvasir::server
