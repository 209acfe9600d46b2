// The routes that generate: POST /v1/chat/completions and POST /v1/completions.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/router.h"
#include "server/step_thread.h"
#include "server/traffic.h"

namespace kvasir::server {

struct CompletionOptions {
  std::string model;   // as clients name it
  std::string policy;  // of requests that name none; empty: the engine's default
  // How long a request may wait for its first pass before it is refused with 503; 0: for ever.
  std::chrono::seconds queue_timeout{0};
};

class Completions {
 public:
  // `steps` and `traffic` must outlive this.
  Completions(StepThread& steps, Traffic& traffic, CompletionOptions options);

  // This must outlive the router.
  void add_routes(Router& router);

  // From now on requests are refused: the server is going down.
  void begin_drain() { draining_ = true; }

  // Refuses requests that have waited longer than queue_timeout.
  void end_long_waits();

 private:
  class Flight;

  void complete(Exchange exchange, bool chat);
  void refuse(const Exchange& exchange, const Status& status);

  StepThread& steps_;
  Traffic& traffic_;
  CompletionOptions options_;
  std::uint64_t next_ = 1;
  std::string id_prefix_;  // of this process: ids of two runs differ
  bool draining_ = false;
  std::vector<std::weak_ptr<Flight>> waiting_;  // oldest first; filled only if there is a queue_timeout
};

}  // namespace kvasir::server
