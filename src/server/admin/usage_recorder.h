// Records the usage of tenants, and answers GET /v1/usage.
// Thread-safety: the I/O thread's alone.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "server/admin/traffic.h"
#include "server/http/router.h"
#include "tenants/usage_writer.h"

namespace kvasir::server {

class UsageRecorder final : public TrafficObserver {
 public:
  // `post` runs a function on the I/O thread and must be thread-safe. It is called until close() has returned.
  UsageRecorder(tenants::UsageWriter::Options options, std::function<void(std::function<void()>)> post);

  void on_progress(const RequestRecord& record) override;
  void on_finished(const RequestRecord& record) override;
  // Counts a request that a limit refused.
  void add_refused(const std::string& tenant);

  // Writes pending usage. Nothing is recorded or answered from then on.
  void close() { writer_.reset(); }

  // GET /v1/usage?since=2026-11-01 answers with the rows of the caller's own tenant, and their sums. Without `since`:
  // of the last 30 days. This must outlive the router.
  void add_routes(Router& router);

 private:
  void answer(Exchange exchange);

  std::function<void(std::function<void()>)> post_;
  std::optional<tenants::UsageWriter> writer_;
};

}  // namespace kvasir::server
