// All routes of the server, put together.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/admin/traffic.h"
#include "server/api/completions.h"
#include "server/api/text_routes.h"
#include "server/dialects/dialect_routes.h"
#include "server/dialects/info_routes.h"
#include "server/http/http_server.h"
#include "server/http/router.h"
#include "server/inspector/inspector.h"
#include "server/models/model_desk.h"
#include "server/sessions/session_desk.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {

struct ServiceOptions {
  std::vector<std::string> origins;  // see Router
  Gate* gate = nullptr;              // null: everybody passes. Must outlive the service
  // Folder of saved sessions, which exists (SessionStore::prepare); empty: there are no sessions.
  std::string sessions;
  SessionLimits session_limits;
  bool inspector = true;
  std::chrono::seconds queue_timeout{0};  // see FlightDeck
  std::string version;                    // of the program
  ResponseStore::Limits responses;        // answers of /v1/responses that are kept
};

class Service {
 public:
  // Both must outlive this. With sessions, REQUIRES: the default model is loaded and pinned.
  Service(ModelDesk& models, TextThread& texts, TextThread& grammars, ServiceOptions options);

  // Answers a request, now or later.
  void handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
    router_.handle(std::move(request), std::move(answer));
  }

  // See HttpServer::Admit.
  std::optional<std::string> admit(const HttpRequest& request, HttpAnswer& answer) const {
    return router_.admit(request, answer);
  }

  // From now on /ready and new requests are answered that the server is going down.
  void begin_drain();
  // Ends requests under way with an error; see HttpServer::drain.
  void cut_off() { completions_.cut_off(); }

  // Ends the service's threads. Call it when HttpServer::run() has returned.
  void stop();

  // Updates the Inspector's streams, and ends requests that have waited too long. Call it every
  // kTick.
  static constexpr std::chrono::milliseconds kTick{250};
  void tick();

  // For adding routes and observers before the first request.
  Router& router() { return router_; }
  Traffic& traffic() { return traffic_; }

 private:
  void list_models(const Exchange& exchange) const;  // or only the one named in the path
  void health(const Exchange& exchange) const;
  void ready(const Exchange& exchange) const;

  ModelDesk& models_;
  ServiceOptions options_;
  std::int64_t started_;
  bool draining_ = false;
  Traffic traffic_;
  std::unique_ptr<SessionDesk> sessions_;  // null: the server has no sessions
  SessionText session_text_;
  Completions completions_;
  DialectRoutes dialects_;
  InfoRoutes info_routes_;
  TextRoutes text_routes_;
  Inspector inspector_;
  Router router_;
};

}  // namespace kvasir::server
