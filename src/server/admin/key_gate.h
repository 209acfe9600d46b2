// The gate of a server with API keys: identifies callers by their key, enforces their tenant's limits, and follows
// changes of the keys file.
//
// A key comes as "Authorization: Bearer KEY" or "x-api-key: KEY". A request whose key is missing, unknown, revoked or
// expired is answered with 401, without saying which. Requests other than GET count against the tenant's limits: a
// request over a limit is answered with 429 and Retry-After.
//
// No message, log line or refusal contains a key or a part of one.
//
// Thread-safety: the I/O thread's alone. Caller::hold may be dropped on any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/engine.h"
#include "server/admin/traffic.h"
#include "server/http/router.h"
#include "tenants/key_ring.h"
#include "tenants/rate_limiter.h"

namespace kvasir::server {

// The KV memory of one tenant, for Engine::set_quota.
struct QuotaChange {
  int tenant_number = 0;
  std::string tenant;
  TenantQuota quota;
};

class KeyGate final : public Gate, public TrafficObserver {
 public:
  struct Options {
    std::string path;
    // Gets one line when the file was read again, or could not be read.
    std::function<void(const std::string&)> log;
    // Gets the quotas that changed in the file. Lowered floors come first.
    std::function<void(const std::vector<QuotaChange>&)> on_quotas;
    // Gets the tenant's name when a limit refused a request.
    std::function<void(const std::string&)> on_limited;
    // Clocks; empty: the system's.
    std::function<std::int64_t()> now;  // seconds since 1970
    std::function<tenants::RateLimiter::Time()> steady;
  };

  // A tenant by its number, for metrics.
  struct TenantInfo {
    int number = 0;
    std::string name;
    TenantQuota quota;
    std::int64_t running = 0;  // requests; counted only for tenants with limits
  };

  // Reads the keys file. Errors: as tenants::load_key_file.
  static Result<std::unique_ptr<KeyGate>> open(Options options);

  std::optional<Refusal> identify(const HttpRequest& request, Caller& caller) override;
  std::optional<Refusal> check(const HttpRequest& request, Caller& caller) override;
  void on_finished(const RequestRecord& record) override;

  // Sets the observer of refusals (TrafficObserver::on_refused), which must outlive this gate.
  void report_to(TrafficObserver* observer) { observer_ = observer; }

  // Checks that the floors fit into the KV memory, now and in files read later. Errors: kInvalidArgument.
  Status limit_floors(std::uint64_t kv_memory);

  // Reads the file again if it has changed or could not be read. If the new file is missing or wrong, keeps the old
  // keys and logs one line. Called a few times a second.
  void reload_if_changed();

  // The quotas of all tenants that have one.
  std::vector<QuotaChange> quotas() const;
  // Tenants of the file, in order of their numbers.
  std::vector<TenantInfo> tenants() const;
  // The number of keys that would pass now.
  std::size_t valid_keys() const { return ring_->valid(now()); }

 private:
  // Identifies a version of the file.
  struct Stamp {
    std::uint64_t device = 0, inode = 0, size = 0;
    std::int64_t modified = 0, changed = 0;  // ns
    std::uint64_t mode = 0;
    bool operator==(const Stamp&) const = default;
  };

  explicit KeyGate(Options options) : options_(std::move(options)) {}

  static Stamp stamp_of(const std::string& path);
  Status check_floors(const tenants::KeyFile& file) const;
  void take_over(const tenants::KeyFile& file);
  std::vector<QuotaChange> changes(const std::vector<tenants::Tenant>& before,
                                   const std::vector<tenants::Tenant>& after) const;
  std::optional<Refusal> limited(Caller& caller, const HttpRequest& request);
  std::int64_t now() const;
  tenants::RateLimiter::Time steady() const;

  const Options options_;
  TrafficObserver* observer_ = nullptr;
  std::uint64_t kv_memory_ = 0;  // 0: not known yet
  Stamp stamp_;
  std::string unread_;  // the logged reason why the file could not be read; empty: it was read
  tenants::TenantNumbers numbers_;
  std::vector<tenants::Tenant> tenants_;
  std::unique_ptr<tenants::KeyRing> ring_;
  tenants::RateLimiter limiter_;
};

}  // namespace kvasir::server
