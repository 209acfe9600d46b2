#include "server/admin/tenancy.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "tenants/usage_store.h"

namespace kvasir::server {
namespace {

// Twice this is well below a second, within which a revoked key must stop working.
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
  keys.on_quotas = [self](const std::vector<QuotaChange>& changes) { self->change_quotas(changes); };
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

Status Tenancy::limit_floors(std::uint64_t kv_memory) {
  return gate_ == nullptr ? Status() : gate_->limit_floors(kv_memory);
}

Status Tenancy::set_quotas(Engine& engine) const {
  if (gate_ == nullptr) return {};
  for (const QuotaChange& change : gate_->quotas()) {
    const Status status = engine.set_quota(change.tenant_number, change.quota);
    if (!status.ok())
      return status.with_message(fmt::format("quota of tenant '{}': {}", change.tenant, status.message()));
  }
  return {};
}

void Tenancy::join(Service& service, ModelDesk& models, HttpServer& http) {
  models_ = &models;
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
  http.every(kKeysPeriod, [this] {
    gate_->reload_if_changed();
    send_quotas();
  });
}

void Tenancy::leave() {
  if (usage_ != nullptr) usage_->close();
}

void Tenancy::change_quotas(const std::vector<QuotaChange>& changes) {
  for (const QuotaChange& change : changes) keep_unset(change);
  send_quotas();
}

void Tenancy::keep_unset(const QuotaChange& change) {
  std::erase_if(unset_, [&](const QuotaChange& old) { return old.tenant_number == change.tenant_number; });
  unset_.push_back(change);
}

// Sends one batch at a time to the models that are loaded, in order: floors are lowered before others are raised. A
// model that is loaded later begins with the newest. Quotas that could not be set are sent again at the next check of
// the keys file.
void Tenancy::send_quotas() {
  if (models_ == nullptr || unset_.empty() || sends_ > 0) return;
  const auto batch = std::make_shared<const std::vector<QuotaChange>>(std::exchange(unset_, {}));
  for (const ModelDesk::Info& model : models_->list()) {
    const auto lease = std::make_shared<ModelLease>(models_->look(model.defaults.name));
    if (!*lease) continue;
    StepThread& steps = (*lease)->steps;
    ++sends_;
    const auto ended = [this, lease] {
      --sends_;
      lease->reset();
    };
    const auto failed = [this, batch, ended] {
      ended();
      std::vector<QuotaChange> newer = std::exchange(unset_, *batch);
      for (const QuotaChange& change : newer) keep_unset(change);
    };
    const auto set = [this, &steps, batch, ended](Engine& engine) {
      for (const QuotaChange& change : *batch) {
        const Status status = engine.set_quota(change.tenant_number, change.quota);
        if (!status.ok()) log(fmt::format("quota of tenant '{}' not set: {}", change.tenant, status.message()));
      }
      steps.post(ended);
    };
    if (!steps.ask(set, failed).ok()) failed();
  }
}

}  // namespace kvasir::server
