#include "server/api/completions.h"

#include <fmt/core.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "server/api/text_answer.h"
#include "server/http/random_name.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

Json json_of(const SessionInfo& info) {
  return {{"object", "session"}, {"id", info.id}, {"bytes", info.bytes}, {"saved_at", info.saved}};
}

}  // namespace

Completions::Completions(const FlightDeck& deck, const Dialect& session_text)
    : deck_(deck), session_text_(session_text) {}

void Completions::fly(Exchange exchange, const Dialect& dialect, std::string session) {
  if (draining_) {
    deck_.traffic.on_refused("draining", exchange.request.address, exchange.request.path);
    return exchange.refuse(503, kGoingDown, kShutdown, {{"Retry-After", "5"}});
  }
  AnswerHead head;
  head.id = std::string(dialect.id_prefix()) + random_name(3);
  head.created = std::time(nullptr);
  const auto flight =
      std::make_shared<Flight>(deck_, dialect, std::move(head), std::move(exchange), std::move(session));
  flights_.push_back(flight);
  flight->start();
}

void Completions::tick() {
  std::erase_if(flights_, [](const std::weak_ptr<Flight>& each) { return each.expired(); });
  const auto latest = std::chrono::steady_clock::now() - deck_.queue_timeout;
  for (const std::weak_ptr<Flight>& each : flights_) {
    const std::shared_ptr<Flight> flight = each.lock();
    if (flight == nullptr) continue;
    if (deck_.queue_timeout.count() > 0) flight->wait_until(latest);
    flight->go_on();
  }
}

void Completions::cut_off() {
  for (const std::weak_ptr<Flight>& each : flights_)
    if (const std::shared_ptr<Flight> flight = each.lock()) flight->cut_off();
}

void Completions::add_routes(Router& router) {
  router.add("GET", "/v1/sessions", [this](Exchange exchange) { list_sessions(std::move(exchange)); });
  router.add("GET", "/v1/sessions/{id}", [this](Exchange exchange) { find_session(std::move(exchange)); });
  router.add("POST", "/v1/sessions/{id}", [this](Exchange exchange) { use_session(std::move(exchange)); });
  router.add("DELETE", "/v1/sessions/{id}", [this](Exchange exchange) { delete_session(std::move(exchange)); });
}

bool Completions::has_sessions(const Exchange& exchange) const {
  if (deck_.sessions == nullptr) {
    exchange.refuse(404, "this server keeps no sessions; start it with --sessions DIR");
    return false;
  }
  if (!exchange.parameter.empty() && !is_session_id(exchange.parameter)) {
    exchange.refuse(invalid_argument("a session's id is 1 to 64 letters, digits, '-' and '_'").about({"session"}));
    return false;
  }
  return true;
}

void Completions::use_session(Exchange exchange) {
  if (!has_sessions(exchange)) return;
  std::string id = exchange.parameter;
  fly(std::move(exchange), session_text_, std::move(id));
}

void Completions::list_sessions(Exchange exchange) {
  if (!has_sessions(exchange)) return;
  const std::string tenant = exchange.caller.tenant;
  answer_on(deck_.texts, std::move(exchange), [this, tenant](const Exchange&) -> Result<std::string> {
    Json list = Json::array();
    for (const SessionInfo& info : deck_.sessions->store().list(tenant)) list.push_back(json_of(info));
    return text_of({{"object", "list"}, {"data", std::move(list)}});
  });
}

void Completions::find_session(Exchange exchange) {
  if (!has_sessions(exchange)) return;
  const SessionName name{exchange.caller.tenant, exchange.parameter};
  answer_on(deck_.texts, std::move(exchange), [this, name](const Exchange&) -> Result<std::string> {
    KVASIR_ASSIGN_OR_RETURN(const SessionInfo info, deck_.sessions->store().find(name.tenant, name.id));
    return text_of(json_of(info));
  });
}

void Completions::delete_session(Exchange exchange) {
  if (!has_sessions(exchange)) return;
  const SessionName name{exchange.caller.tenant, exchange.parameter};
  if (!deck_.sessions->take(name))
    return exchange.refuse(409,
                           fmt::format("a request is using the session '{}'; try again when that has ended", name.id),
                           "session_busy");
  answer_on(
      deck_.texts, std::move(exchange),
      [this, name](const Exchange&) -> Result<std::string> {
        KVASIR_RETURN_IF_ERROR(deck_.sessions->store().remove(name.tenant, name.id));
        return text_of({{"object", "session"}, {"id", name.id}, {"deleted", true}});
      },
      [this, name] { deck_.sessions->give_back(name); });
}

}  // namespace kvasir::server
