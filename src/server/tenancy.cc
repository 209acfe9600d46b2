#include "server/tenancy.h"

#include <fmt/core.h>

#include <utility>

#include "base/status.h"
#include "tenants/usage_store.h"

namespace kvasir::server {
namespace {

// Twice this is well below the second within which a revoked key must end.
constexpr std::chrono::milliseconds kKeysPeriod{250};

}  // namespace

Result<std::unique_ptr<Tenancy>> Tenancy::open(TenancyOptions options) {
  std::unique_ptr<Tenancy> tenancy(new Tenancy(std::move(options)));
  Tenancy* self = tenancy.get();
  if (!self->options_.usage_db.empty()) KVASIR_RETURN_IF_ERROR(tenants::check_usage_place(self->options_.usage_db));
  if (self->options_.api_keys.empty()) return tenancy;
  KeyGate::Options keys;
  keys.path = self->options_.api_keys;
  keys.log = [self](const std::string& line) { self->log(line); };
  keys.on_quotas = [self](const std::vector<QuotaChange>& changes) { self->send_quotas(changes); };
  keys.on_limited = [self](const std::string& tenant) {
    if (self->usage_ != nullptr) self->usage_->add_refused(tenant);
  };
  KVASIR_ASSIGN_OR_RETURN(self->gate_, KeyGate::open(std::move(keys)));
  if (self->gate_->valid_keys() == 0)
    self->log(fmt::format("'{}' has no valid key, so every request is refused; add one with 'kvasir keys add'",
                          self->options_.api_keys));
  return tenancy;
}

void Tenancy::log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

std::map<int, std::string> Tenancy::names() const {
  if (gate_ == nullptr) return {{0, std::string()}};
  std::map<int, std::string> names;
  for (KeyGate::TenantInfo& tenant : gate_->tenants()) names.emplace(tenant.number, std::move(tenant.name));
  return names;
}

Status Tenancy::set_quotas(Engine& engine) {
  if (gate_ == nullptr) return {};
  KVASIR_RETURN_IF_ERROR(gate_->limit_floors(engine.cache().budget));
  for (const QuotaChange& change : gate_->quotas()) {
    const Status status = engine.set_quota(change.tenant_number, change.quota);
    if (!status.ok())
      return status.with_message(fmt::format("quota of tenant '{}': {}", change.tenant, status.message()));
  }
  return {};
}

void Tenancy::join(Service& service, StepThread& steps, HttpServer& http) {
  steps_ = &steps;
  if (!options_.usage_db.empty()) {
    tenants::UsageWriter::Options usage;
    usage.path = options_.usage_db;
    usage.log = options_.log;
    usage_ = std::make_unique<UsageRecorder>(
        std::move(usage), [&http](std::function<void()> function) { http.post(std::move(function)); });
    usage_->add_routes(service.router());
    service.traffic().add(usage_.get());
  }
  if (gate_ == nullptr) return;
  gate_->report_to(&service.traffic());
  service.traffic().add(gate_.get());
  http.every(kKeysPeriod, [this] { gate_->reload_if_changed(); });
}

void Tenancy::leave() {
  if (usage_ != nullptr) usage_->close();
}

void Tenancy::send_quotas(const std::vector<QuotaChange>& changes) const {
  if (steps_ == nullptr) return;
  const Status asked = steps_->ask([changes, log = options_.log](Engine& engine) {
    for (const QuotaChange& change : changes) {
      const Status status = engine.set_quota(change.tenant_number, change.quota);
      if (!status.ok() && log) log(fmt::format("quota of tenant '{}' not set: {}", change.tenant, status.message()));
    }
  });
  if (!asked.ok()) log(fmt::format("the changed quotas are not set: {}", asked.message()));
}

}  // namespace kvasir::server
