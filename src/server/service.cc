#include "server/service.h"

#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_response.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kLongestPass{30};

}  // namespace

Service::Service(StepThread& steps, ServiceOptions options)
    : steps_(steps),
      options_(std::move(options)),
      started_(std::time(nullptr)),
      completions_(steps, traffic_, {options_.model, options_.policy, options_.queue_timeout}),
      router_(options_.gate) {
  completions_.add_routes(router_);
  router_.add("GET", "/v1/models", [this](const Exchange& exchange) { list_models(exchange); });
  router_.add(
      "GET", "/health", [this](const Exchange& exchange) { health(exchange); }, Router::Access::kAll);
  router_.add(
      "GET", "/ready", [this](const Exchange& exchange) { ready(exchange); }, Router::Access::kAll);
}

void Service::begin_drain() {
  draining_ = true;
  completions_.begin_drain();
}

void Service::list_models(const Exchange& exchange) const {
  const Json model = {{"id", options_.model},
                      {"object", "model"},
                      {"created", started_},
                      {"owned_by", "kvasir"},
                      {"max_model_len", steps_.model().context}};
  exchange.send_json(200, text_of({{"object", "list"}, {"data", Json::array({model})}}));
}

void Service::health(const Exchange& exchange) const {
  if (steps_.busy() > kLongestPass) return exchange.refuse(503, "a pass has been running for more than 30 s");
  exchange.send_json(200, R"({"status":"ok"})");
}

void Service::ready(const Exchange& exchange) const {
  if (draining_) return exchange.refuse(503, "the server is going down");
  exchange.send_json(200, R"({"status":"ready"})");
}

}  // namespace kvasir::server
