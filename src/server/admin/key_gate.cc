#include "server/admin/key_gate.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/byte_size.h"
#include "base/counted.h"
#include "base/status.h"

namespace kvasir::server {
namespace {

using tenants::RateLimiter;

// Returns the key of "Bearer KEY"; "" for a field of any other form.
std::string_view bearer_of(std::string_view field) {
  constexpr std::string_view kScheme = "bearer ";
  if (field.size() < kScheme.size()) return {};
  for (std::size_t i = 0; i < kScheme.size(); ++i)
    if ((field[i] >= 'A' && field[i] <= 'Z' ? field[i] + 32 : field[i]) != kScheme[i]) return {};
  field.remove_prefix(kScheme.size());
  while (field.starts_with(' ')) field.remove_prefix(1);
  while (field.ends_with(' ')) field.remove_suffix(1);
  return field;
}

Refusal unauthorized(std::string_view message) {
  return {401, std::string(message), "invalid_api_key", {{"WWW-Authenticate", "Bearer"}}};
}

std::string limit_message(std::string_view tenant, const RateLimiter::Refusal& refusal) {
  const std::int64_t seconds = refusal.retry_after.count();
  switch (refusal.limit) {
    case RateLimiter::Limit::kRequests:
      return fmt::format("tenant '{}' may send {} a minute; try again in {} s", tenant,
                         counted(refusal.allowed, "request"), seconds);
    case RateLimiter::Limit::kTokens:
      return fmt::format("tenant '{}' may use {} a minute, and has used more; try again in {} s", tenant,
                         counted(refusal.allowed, "token"), seconds);
    case RateLimiter::Limit::kConcurrent:
      return fmt::format("tenant '{}' may have {} at a time; try again when one has ended", tenant,
                         counted(refusal.allowed, "request"));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<KeyGate>> KeyGate::open(Options options) {
  std::unique_ptr<KeyGate> gate(new KeyGate(std::move(options)));
  // Before the file is read, so that a change meanwhile has it read again.
  gate->stamp_ = stamp_of(gate->options_.path);
  KVASIR_ASSIGN_OR_RETURN(const tenants::KeyFile file, tenants::load_key_file(gate->options_.path));
  gate->take_over(file);
  return gate;
}

KeyGate::Stamp KeyGate::stamp_of(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return {};
  const auto nanoseconds = [](const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + std::int64_t{time.tv_nsec};
  };
  return {
      st.st_dev, st.st_ino, static_cast<std::uint64_t>(st.st_size), nanoseconds(st.st_mtim), nanoseconds(st.st_ctim),
      st.st_mode};
}

std::int64_t KeyGate::now() const {
  return options_.now ? options_.now() : std::int64_t{std::time(nullptr)};
}

RateLimiter::Time KeyGate::steady() const {
  return options_.steady ? options_.steady() : std::chrono::steady_clock::now();
}

Status KeyGate::check_floors(const tenants::KeyFile& file) const {
  if (kv_memory_ == 0) return {};
  std::uint64_t left = kv_memory_;
  for (const tenants::Tenant& tenant : file.tenants) {
    if (tenant.floor > left)
      return invalid_argument(
          "keys file '{}': with tenant '{}' the floors are more than the KV memory of {} bytes; lower floors, or serve "
          "with more KV memory",
          options_.path, tenant.name, kv_memory_);
    left -= tenant.floor;
  }
  return {};
}

Status KeyGate::limit_floors(std::uint64_t kv_memory) {
  kv_memory_ = kv_memory;
  tenants::KeyFile file;
  file.tenants = tenants_;
  return check_floors(file);
}

void KeyGate::take_over(const tenants::KeyFile& file) {
  ring_ = std::make_unique<tenants::KeyRing>(file, numbers_);
  tenants_ = file.tenants;
  std::vector<std::pair<int, tenants::RateLimits>> limits;
  for (const tenants::Tenant& tenant : tenants_)
    limits.emplace_back(numbers_.number_of(tenant.name),
                        tenants::RateLimits{tenant.requests_per_minute, tenant.tokens_per_minute, tenant.concurrent});
  limiter_.set(limits, steady());
}

std::vector<QuotaChange> KeyGate::changes(const std::vector<tenants::Tenant>& before,
                                          const std::vector<tenants::Tenant>& after) const {
  const auto quota_in = [](const std::vector<tenants::Tenant>& list, const std::string& name) {
    const auto found = std::ranges::find(list, name, &tenants::Tenant::name);
    return found == list.end() ? TenantQuota() : TenantQuota{found->floor, found->ceiling};
  };
  std::vector<QuotaChange> lowered, raised;
  for (int number = 1; number <= numbers_.count(); ++number) {
    const std::string name(numbers_.name_of(number));
    const TenantQuota old = quota_in(before, name), wanted = quota_in(after, name);
    if (old.floor == wanted.floor && old.ceiling == wanted.ceiling) continue;
    (wanted.floor < old.floor ? lowered : raised).push_back({number, name, wanted});
  }
  lowered.insert(lowered.end(), raised.begin(), raised.end());
  return lowered;
}

void KeyGate::reload_if_changed() {
  const Stamp stamp = stamp_of(options_.path);
  if (stamp == stamp_ && unread_.empty()) return;
  const Result<tenants::KeyFile> file = tenants::load_key_file(options_.path);
  Status status = file.status();
  if (status.ok()) status = check_floors(*file);
  stamp_ = stamp;
  // An I/O error, such as too many open files, may pass: the file is tried again.
  const std::string unread = std::exchange(unread_, status.code() == StatusCode::kIo ? status.message() : "");
  if (!status.ok()) {
    if (options_.log && (unread_.empty() || unread_ != unread))
      options_.log(fmt::format("the keys of before stay: {}", status.message()));
    return;
  }
  const std::vector<tenants::Tenant> before = std::move(tenants_);
  take_over(*file);
  if (options_.log)
    options_.log(fmt::format("read the keys file again: {} of {}",
                             counted(static_cast<std::int64_t>(valid_keys()), "valid key"),
                             counted(static_cast<std::int64_t>(tenants_.size()), "tenant")));
  const std::vector<QuotaChange> changed = changes(before, tenants_);
  if (!changed.empty() && options_.on_quotas) options_.on_quotas(changed);
}

std::vector<QuotaChange> KeyGate::quotas() const {
  return changes({}, tenants_);
}

std::vector<KeyGate::TenantInfo> KeyGate::tenants() const {
  std::vector<TenantInfo> list;
  for (const tenants::Tenant& tenant : tenants_) {
    const int number = numbers_.find(tenant.name).value_or(0);
    list.push_back({number, tenant.name, {tenant.floor, tenant.ceiling}, limiter_.running(number)});
  }
  std::ranges::sort(list, {}, &TenantInfo::number);
  return list;
}

std::optional<Refusal> KeyGate::identify(const HttpRequest& request, Caller& caller) {
  std::string_view key = bearer_of(request.field("authorization"));
  if (key.empty()) key = request.field("x-api-key");
  const tenants::KeyRing::Entry* entry = key.empty() ? nullptr : ring_->find(key, now());
  if (entry == nullptr) {
    if (observer_ != nullptr) observer_->on_refused("unauthorized", request.address, request.path);
    return unauthorized(key.empty()
                            ? "this server needs an API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
                            : "the API key is unknown, revoked or expired; ask who runs this server for one");
  }
  caller.tenant = entry->tenant;
  caller.key_id = entry->key_id;
  caller.tenant_number = entry->tenant_number;
  caller.salt = entry->salt;
  caller.priority = entry->priority;
  caller.sees_all = entry->is_operator;
  return std::nullopt;
}

std::optional<Refusal> KeyGate::check(const HttpRequest& request, Caller& caller) {
  if (std::optional<Refusal> refusal = identify(request, caller)) return refusal;
  if (request.method == "GET" || request.method == "HEAD") return std::nullopt;
  return limited(caller, request);
}

std::optional<Refusal> KeyGate::limited(Caller& caller, const HttpRequest& request) {
  RateLimiter::Answer answer = limiter_.take(caller.tenant_number, steady());
  if (!answer.refusal) {
    caller.hold = std::move(answer.hold);
    return std::nullopt;
  }
  if (observer_ != nullptr) observer_->on_refused("rate_limit", request.address, request.path);
  if (options_.on_limited) options_.on_limited(caller.tenant);
  return Refusal{429,
                 limit_message(caller.tenant, *answer.refusal),
                 "rate_limit_exceeded",
                 {{"Retry-After", std::to_string(answer.refusal->retry_after.count())}}};
}

void KeyGate::on_finished(const RequestRecord& record) {
  if (const std::optional<int> number = numbers_.find(record.tenant))
    limiter_.charge(*number, record.prompt_tokens + record.generated_tokens, steady());
}

}  // namespace kvasir::server
