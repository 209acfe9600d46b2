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

}  // namespace

Service::Service(StepThread& steps, TextThread& texts, ServiceOptions options)
    : steps_(steps),
      options_(std::move(options)),
      started_(std::time(nullptr)),
      sessions_(options_.sessions.empty()
                    ? nullptr
                    : std::make_unique<SessionDesk>(steps, SessionStore(options_.sessions, options_.session_limits))),
      completions_({steps, texts, traffic_, sessions_.get(), options_.model, options_.policy, options_.sampling,
                    options_.queue_timeout},
                   session_text_),
      dialects_(completions_, steps.model().context, options_.responses),
      info_routes_(steps, texts, {options_.model, options_.sampling, options_.parallel, started_, options_.version}),
      text_routes_(steps, texts, options_.model, options_.policy),
      inspector_(steps, {options_.model, options_.policy, options_.gate}),
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
  const Json model = {{"id", options_.model},
                      {"object", "model"},
                      {"created", started_},
                      {"owned_by", "kvasir"},
                      {"root", options_.model},
                      {"parent", nullptr},
                      {"max_model_len", steps_.model().context}};
  if (exchange.parameter.empty())
    return exchange.send_json(200, text_of({{"object", "list"}, {"data", Json::array({model})}}));
  if (exchange.parameter == options_.model) return exchange.send_json(200, text_of(model));
  exchange.refuse(404, "there is no model of this name here; GET /v1/models lists what there is", "model_not_found");
}

void Service::health(const Exchange& exchange) const {
  if (steps_.busy() > kLongestPass) return exchange.refuse(503, "a pass has been running for more than 30 s");
  exchange.send_json(200, R"({"status":"ok"})");
}

void Service::ready(const Exchange& exchange) const {
  if (draining_) return exchange.refuse(503, kGoingDown, kShutdown);
  exchange.send_json(200, R"({"status":"ready"})");
}

}  // namespace kvasir::server
