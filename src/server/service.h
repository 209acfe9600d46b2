// All that the server answers: it puts the routes together.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "server/completions.h"
#include "server/http_server.h"
#include "server/router.h"
#include "server/step_thread.h"
#include "server/traffic.h"

namespace kvasir::server {

struct ServiceOptions {
  std::string model;                      // as clients name it
  std::string policy;                     // of requests that name none; empty: the engine's default
  Gate* gate = nullptr;                   // may be null: then everybody passes. Must outlive the service
  std::chrono::seconds queue_timeout{0};  // see CompletionOptions
};

class Service {
 public:
  // `steps` must outlive this.
  Service(StepThread& steps, ServiceOptions options);

  // Answers a request, now or later.
  void handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
    router_.handle(std::move(request), std::move(answer));
  }

  // From now on /ready and new requests say that the server is going down.
  void begin_drain();

  // Ends requests that have waited too long. To be called several times a second.
  void end_long_waits() { completions_.end_long_waits(); }

  // To add routes and observers before the first request.
  Router& router() { return router_; }
  Traffic& traffic() { return traffic_; }

 private:
  void list_models(const Exchange& exchange) const;
  void health(const Exchange& exchange) const;
  void ready(const Exchange& exchange) const;

  StepThread& steps_;
  ServiceOptions options_;
  std::int64_t started_;
  bool draining_ = false;
  Traffic traffic_;
  Completions completions_;
  Router router_;
};

}  // namespace kvasir::server
