// The server's routes: what each path does with a request.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/http_server.h"
#include "server/step_thread.h"

namespace kvasir::server {

struct ServiceOptions {
  std::string model;   // as clients name it
  std::string policy;  // of requests that name none; empty: the engine's default
};

class Service {
 public:
  Service(StepThread& steps, ServiceOptions options);

  // Answers a request, now or later.
  void handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer);

  // From now on /ready and new requests say that the server is going down.
  void begin_drain() { draining_ = true; }

 private:
  class Flight;

  void complete(const HttpRequest& request, std::shared_ptr<HttpAnswer> answer, bool chat);
  void list_models(HttpAnswer& answer) const;
  void health(HttpAnswer& answer) const;
  void ready(HttpAnswer& answer) const;
  bool knows_model(const std::string& name) const { return name.empty() || name == options_.model; }

  StepThread& steps_;
  ServiceOptions options_;
  std::int64_t started_;
  std::uint64_t next_ = 1;
  std::string id_prefix_;  // of this process: ids of two runs differ
  bool draining_ = false;
};

}  // namespace kvasir::server
