// Tenants of a server: its gate, their quotas and their usage, put together.
//
//   auto tenancy = Tenancy::open(options);      // before the model is loaded: reports a wrong keys file at once
//   tenancy->limit_floors(bytes);               // the KV memory of the smallest model
//   ... HttpServer, ModelDesk with set_quotas(), Service with tenancy->gate() ...
//   tenancy->join(*service, models, *http);
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
#include "server/models/model_desk.h"
#include "server/service.h"

namespace kvasir::server {

struct TenancyOptions {
  std::string api_keys;  // path; empty: no keys, all requests have the same caller
  std::string usage_db;  // path; empty: usage is not kept
  // Gets one line for the operator. Must be thread-safe.
  std::function<void(const std::string&)> log;
};

class Tenancy {
 public:
  // Errors: those of the keys file. A usage database that cannot be opened is no error: it is logged, and opening is
  // tried again regularly.
  static Result<std::unique_ptr<Tenancy>> open(TenancyOptions options);

  // Null without keys. Must not outlive this object.
  KeyGate* gate() const { return gate_.get(); }

  // The tenants' names by number; without keys, one tenant without a name.
  std::map<int, std::string> names() const;

  // Checks the tenants' floors against KV memory of so many bytes, now and whenever the keys file changes. Errors:
  // kInvalidArgument.
  Status limit_floors(std::uint64_t kv_memory);

  // Gives an engine that takes no requests yet the quotas of all tenants. Errors: kInvalidArgument for floors that
  // exceed its memory.
  Status set_quotas(Engine& engine) const;

  // Subscribes to the service's traffic, adds routes, and follows changes of the keys file. All must outlive the run of
  // `http`. REQUIRES: no request was answered yet.
  void join(Service& service, ModelDesk& models, HttpServer& http);

  // Writes all pending usage. Nothing is answered from now on. REQUIRES: HttpServer::run() has returned.
  void leave();

 private:
  explicit Tenancy(TenancyOptions options) : options_(std::move(options)) {}
  void log(const std::string& line) const;
  void change_quotas(const std::vector<QuotaChange>& changes);
  void keep_unset(const QuotaChange& change);
  void send_quotas();

  const TenancyOptions options_;
  ModelDesk* models_ = nullptr;
  std::unique_ptr<UsageRecorder> usage_;
  std::unique_ptr<KeyGate> gate_;
  std::vector<QuotaChange> unset_;  // quotas that the engines do not have yet
  int sends_ = 0;                   // models that a batch is on its way to
};

}  // namespace kvasir::server
