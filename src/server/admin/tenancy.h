// Tenants of a server: its gate, their quotas and their usage, put together.
//
//   auto tenancy = Tenancy::open(options);      // before the model is loaded: a wrong keys file is told at once
//   tenancy->set_quotas(*engine);
//   ... HttpServer, StepThread, Service with tenancy->gate() ...
//   tenancy->join(*service, steps, *http);
//   http->run();
//   tenancy->leave();                           // the usage is written
//
// Thread-safety: the I/O thread's alone.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "kvasir/engine.h"
#include "server/admin/key_gate.h"
#include "server/admin/usage_recorder.h"
#include "server/http/http_server.h"
#include "server/service.h"
#include "server/threads/step_thread.h"

namespace kvasir::server {

struct TenancyOptions {
  std::string api_keys;  // path; empty: no keys, and everybody is the same caller
  std::string usage_db;  // path; empty: usage is not kept
  // Gets one line for who runs the server. Must be thread-safe.
  std::function<void(const std::string&)> log;
};

class Tenancy {
 public:
  // Errors: those of the keys file. A usage database that cannot be opened is no error: the log says so, and it is
  // tried again and again.
  static Result<std::unique_ptr<Tenancy>> open(TenancyOptions options);

  // Null without keys. Must not be used after this.
  KeyGate* gate() const { return gate_.get(); }

  // The tenants' names, by number; the one without a name where there are no keys.
  std::map<int, std::string> names() const;

  // Gives the engine the quotas of all tenants. Errors: kInvalidArgument for floors that exceed its memory.
  Status set_quotas(Engine& engine);

  // Subscribes to the service's traffic, adds routes, and follows changes of the keys file. All must outlive the run of
  // `http`. REQUIRES: no request was answered yet.
  void join(Service& service, StepThread& steps, HttpServer& http);

  // Writes usage to its end, and answers nobody from now on. REQUIRES: HttpServer::run() has returned.
  void leave();

 private:
  explicit Tenancy(TenancyOptions options) : options_(std::move(options)) {}
  void log(const std::string& line) const;
  void change_quotas(const std::vector<QuotaChange>& changes);
  void send_quotas();

  const TenancyOptions options_;
  StepThread* steps_ = nullptr;
  std::unique_ptr<UsageRecorder> usage_;
  std::unique_ptr<KeyGate> gate_;
  std::vector<QuotaChange> unset_;  // that the engine does not have yet
  bool sends_ = false;              // some are on their way to it
};

}  // namespace kvasir::server
