#include "server/service.h"

#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api/api_response.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kLongestPass{30};

Json model_object(const ModelDesk::Info& model, std::int64_t since) {
  const std::string& name = model.defaults.name;
  Json object = {{"id", name},
                 {"object", "model"},
                 {"created", since},
                 {"owned_by", "kvasir"},
                 {"root", name},
                 {"parent", nullptr},
                 {"max_model_len", model.summary.context},
                 {"state", name_of(model.state)},
                 {"weight_bytes", model.size.weights},
                 {"kv_bytes", model.size.kv},
                 {"workspace_bytes", model.size.workspace}};
  if (!model.reason.empty()) object["reason"] = model.reason;
  return object;
}

}  // namespace

Service::Service(ModelDesk& models, TextThread& texts, TextThread& grammars, ServiceOptions options)
    : models_(models),
      options_(std::move(options)),
      started_(std::time(nullptr)),
      sessions_(options_.sessions.empty()
                    ? nullptr
                    : std::make_unique<SessionDesk>(models.look()->steps,
                                                    SessionStore(options_.sessions, options_.session_limits))),
      completions_({models, texts, grammars, traffic_, sessions_.get(), options_.queue_timeout}, session_text_),
      dialects_(completions_, options_.responses),
      info_routes_(models, texts, {started_, options_.version}),
      text_routes_(models, texts),
      inspector_(models, {options_.gate}),
      router_(options_.gate, options_.origins) {
  dialects_.add_routes(router_);
  completions_.add_routes(router_);
  text_routes_.add_routes(router_);
  if (options_.inspector) inspector_.add_routes(router_);
  info_routes_.add_routes(router_);
  for (const char* path : {"/v1/models", "/v1/models/{path}"})
    router_.add("GET", path, [this](const Exchange& exchange) { list_models(exchange); });
  router_.add(
      "GET", "/health", [this](const Exchange& exchange) { health(exchange); }, Router::Access::kAll);
  router_.add(
      "GET", "/ready", [this](const Exchange& exchange) { ready(exchange); }, Router::Access::kAll);
}

void Service::tick() {
  inspector_.tick();
  completions_.tick();
}

void Service::begin_drain() {
  draining_ = true;
  completions_.begin_drain();
  inspector_.end_streams();
}

void Service::stop() {
  if (sessions_ != nullptr) sessions_->stop();
}

void Service::list_models(const Exchange& exchange) const {
  if (!exchange.parameter.empty()) {
    const std::optional<ModelDesk::Info> model = models_.find(exchange.parameter);
    if (model) return exchange.send_json(200, text_of(model_object(*model, started_)));
    return exchange.refuse(404, "there is no model of this name here; GET /v1/models lists what there is",
                           "model_not_found");
  }
  Json list = Json::array();
  for (const ModelDesk::Info& model : models_.list()) list.push_back(model_object(model, started_));
  exchange.send_json(200, text_of({{"object", "list"}, {"data", std::move(list)}}));
}

void Service::health(const Exchange& exchange) const {
  if (models_.busy() > kLongestPass) return exchange.refuse(503, "a pass has been running for more than 30 s");
  exchange.send_json(200, R"({"status":"ok"})");
}

void Service::ready(const Exchange& exchange) const {
  if (draining_) return exchange.refuse(503, kGoingDown, kShutdown);
  exchange.send_json(200, R"({"status":"ready"})");
}

}  // namespace kvasir::server
