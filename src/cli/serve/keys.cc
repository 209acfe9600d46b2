// kvasir keys: API keys and tenants of a server, in a file that the server reads.
#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <optional>

#include "base/byte_size.h"
#include "base/counted.h"
#include "base/status.h"
#include "cli/command.h"
#include "tenants/dates.h"
#include "tenants/key_file.h"

namespace kvasir::cli {
namespace {

using tenants::ApiKey;
using tenants::KeyFile;
using tenants::Tenant;

struct KeysOptions {
  std::string file;
  bool json = false;
  std::string id;
  std::string tenant;
  std::string expires;
  std::optional<int> priority;
  std::optional<std::uint64_t> floor, ceiling;
  std::optional<std::int64_t> requests, tokens, concurrent;
  bool remove = false;
  bool is_operator = false;
};

std::int64_t now() {
  return std::time(nullptr);
}

std::string_view state_of(const ApiKey& key) {
  if (key.revoked != 0) return "revoked";
  return key.expires != 0 && key.expires <= now() ? "expired" : "valid";
}

Json moment_or_null(std::int64_t moment) {
  return moment == 0 ? Json() : Json(tenants::moment_text(moment));
}

Json json_of(const ApiKey& key) {
  return {{"id", key.id},
          {"tenant", key.tenant},
          {"state", state_of(key)},
          {"created", moment_or_null(key.created)},
          {"expires", moment_or_null(key.expires)},
          {"revoked", moment_or_null(key.revoked)},
          {"priority", key.priority},
          {"operator", key.is_operator}};
}

Json json_of(const Tenant& tenant) {
  return {{"name", tenant.name},
          {"floor", tenant.floor},
          {"ceiling", tenant.ceiling},
          {"requests_per_minute", tenant.requests_per_minute},
          {"tokens_per_minute", tenant.tokens_per_minute},
          {"concurrent", tenant.concurrent},
          {"priority", tenant.priority}};
}

Status unknown_tenant(const KeysOptions& options) {
  return make_status(StatusCode::kNotFound,
                     "there is no tenant '{}' in '{}'; make it with: kvasir keys tenant {} --api-keys {}",
                     options.tenant, options.file, options.tenant, options.file);
}

// Returns the moment at which a key expires, as `text` says.
Result<std::int64_t> read_expiry(const std::string& text) {
  if (text.empty()) return std::int64_t{0};
  if (const std::optional<std::int64_t> moment = tenants::parse_moment(text)) {
    if (*moment <= now()) return invalid_argument("--expires: {} is over already", text);
    return *moment;
  }
  if (const std::optional<std::int64_t> span = tenants::parse_span(text)) return now() + *span;
  if (tenants::has_form_of_moment(text))
    return invalid_argument("--expires: there is no '{}' in the calendar; give a date such as 2027-01-31", text);
  if (tenants::has_form_of_span(text))
    return invalid_argument("--expires: '{}' is out of range; give 1h to 36500d", printable(text, 40));
  return invalid_argument("--expires: '{}' is neither a date such as 2027-01-31 nor a time such as 90d or 12h",
                          printable(text, 40));
}

// Reads the file, changes it and writes it, while no other `kvasir keys` does. `change` returns a report, which is
// printed once the file is written.
template <class Change>
Status edit(const std::string& path, bool may_be_new, const Change& change) {
  KVASIR_ASSIGN_OR_RETURN(const tenants::KeyFileLock lock, tenants::KeyFileLock::take(path));
  Result<KeyFile> file = tenants::load_key_file(path);
  if (!file.ok() && file.status().code() == StatusCode::kNotFound && may_be_new) {
    file = KeyFile();
    file->secret = tenants::random_secret();
  }
  if (!file.ok()) return file.status();
  KVASIR_ASSIGN_OR_RETURN(const std::string done, change(*file));
  KVASIR_RETURN_IF_ERROR(tenants::save_key_file(path, *file));
  if (!done.empty()) note("kvasir: {}\n", done);
  return {};
}

Status add_key(const KeysOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const std::int64_t expires, read_expiry(options.expires));
  const std::string secret = tenants::random_api_key();
  ApiKey key;
  KVASIR_RETURN_IF_ERROR(edit(options.file, true, [&](KeyFile& file) -> Result<std::string> {
    std::string done;
    if (file.tenant(options.tenant) == nullptr) {
      // In a file with tenants an unknown name is probably misspelt.
      if (!file.tenants.empty()) return unknown_tenant(options);
      Tenant& tenant = file.tenants.emplace_back();
      tenant.id = tenants::random_id();
      tenant.name = options.tenant;
      done = fmt::format("'{}' is new, with the tenant '{}', which has no limits", options.file, options.tenant);
    }
    do {
      key.id = tenants::random_id();
    } while (file.key(key.id) != nullptr);
    key.tenant = options.tenant;
    key.hash = tenants::api_key_hash(file.secret, secret);
    key.created = now();
    key.expires = expires;
    key.priority = options.priority.value_or(0);
    key.is_operator = options.is_operator;
    file.keys.push_back(key);
    return done;
  }));
  Json json = json_of(key);
  json["key"] = secret;
  const Status shown = options.json ? print_json(json) : print(secret + "\n");
  if (!shown.ok())
    return shown.with_message(
        fmt::format("{}; key {} is in the file, but nobody has seen it: revoke it", shown.message(), key.id));
  note("kvasir: this is key {} of tenant {}; keep it now, it is stored as a hash and cannot be shown again\n", key.id,
       key.tenant);
  return {};
}

Status revoke_key(const KeysOptions& options) {
  return edit(options.file, false, [&](KeyFile& file) -> Result<std::string> {
    ApiKey* key = file.key(options.id);
    if (key == nullptr)
      // The text may be a key, which no message may show.
      return make_status(StatusCode::kNotFound, "there is no key of that id in '{}'; 'kvasir keys list' has the ids",
                         options.file);
    if (key->revoked == 0) key->revoked = now();
    key->hash = {};
    return fmt::format("revoked key {} of tenant {}", key->id, key->tenant);
  });
}

Status prune_keys(const KeysOptions& options) {
  return edit(options.file, false, [&](KeyFile& file) -> Result<std::string> {
    const auto gone = std::erase_if(file.keys, [](const ApiKey& key) { return state_of(key) != "valid"; });
    return gone == 1 ? std::string("dropped 1 entry") : fmt::format("dropped {} entries", gone);
  });
}

Result<std::string> remove_tenant(KeyFile& file, const KeysOptions& options) {
  if (file.tenant(options.tenant) == nullptr) return unknown_tenant(options);
  const auto valid = std::ranges::count_if(
      file.keys, [&](const ApiKey& key) { return key.tenant == options.tenant && key.revoked == 0; });
  if (valid > 0)
    return invalid_argument("tenant '{}' still has {}; revoke first", options.tenant, counted(valid, "key"));
  std::erase_if(file.keys, [&](const ApiKey& key) { return key.tenant == options.tenant; });
  std::erase_if(file.tenants, [&](const Tenant& tenant) { return tenant.name == options.tenant; });
  return fmt::format(
      "removed tenant {}; its sessions and usage stay, and belong to a tenant of that name that is made later: to end "
      "that, delete the folder t_{} in the server's --sessions, or give the new tenant another name",
      options.tenant, options.tenant);
}

Status set_tenant(const KeysOptions& options) {
  return edit(options.file, !options.remove, [&](KeyFile& file) -> Result<std::string> {
    if (options.remove) return remove_tenant(file, options);
    Tenant* tenant = file.tenant(options.tenant);
    const bool is_new = tenant == nullptr;
    if (is_new) {
      tenant = &file.tenants.emplace_back();
      tenant->id = tenants::random_id();
    }
    tenant->name = options.tenant;
    tenant->floor = options.floor.value_or(tenant->floor);
    tenant->ceiling = options.ceiling.value_or(tenant->ceiling);
    tenant->requests_per_minute = options.requests.value_or(tenant->requests_per_minute);
    tenant->tokens_per_minute = options.tokens.value_or(tenant->tokens_per_minute);
    tenant->concurrent = options.concurrent.value_or(tenant->concurrent);
    tenant->priority = options.priority.value_or(tenant->priority);
    return fmt::format("{} tenant {}", is_new ? "made" : "changed", tenant->name);
  });
}

std::string limit_text(std::int64_t limit) {
  return limit == 0 ? "-" : std::to_string(limit);
}

std::string size_text(std::uint64_t bytes) {
  return bytes == 0 ? "-" : byte_size_text(bytes);
}

Status list_keys(const KeysOptions& options) {
  KVASIR_ASSIGN_OR_RETURN(const KeyFile file, tenants::load_key_file(options.file));
  if (options.json) {
    Json json = {{"tenants", Json::array()}, {"keys", Json::array()}};
    for (const Tenant& tenant : file.tenants) json["tenants"].push_back(json_of(tenant));
    for (const ApiKey& key : file.keys) json["keys"].push_back(json_of(key));
    return print_json(json);
  }
  std::string out = fmt::format("{:<20} {:>10} {:>10} {:>12} {:>12} {:>10} {:>8}\n", "tenant", "floor", "ceiling",
                                "requests/min", "tokens/min", "concurrent", "priority");
  for (const Tenant& tenant : file.tenants)
    out += fmt::format("{:<20} {:>10} {:>10} {:>12} {:>12} {:>10} {:>8}\n", tenant.name, size_text(tenant.floor),
                       size_text(tenant.ceiling), limit_text(tenant.requests_per_minute),
                       limit_text(tenant.tokens_per_minute), limit_text(tenant.concurrent), tenant.priority);
  out += fmt::format("\n{:<10} {:<20} {:<8} {:<21} {:<21} {:>8} {:>8}\n", "key", "tenant", "state", "created",
                     "expires", "priority", "operator");
  for (const ApiKey& key : file.keys)
    out += fmt::format("{:<10} {:<20} {:<8} {:<21} {:<21} {:>8} {:>8}\n", key.id, key.tenant, state_of(key),
                       tenants::moment_text(key.created), key.expires == 0 ? "-" : tenants::moment_text(key.expires),
                       key.priority, key.is_operator ? "yes" : "-");
  return print(out);
}

using Action = Status (*)(const KeysOptions&);

CLI::App* add_command(CLI::App& keys, Outcome& outcome, const std::shared_ptr<KeysOptions>& options,
                      const std::string& name, const std::string& help, Action run) {
  CLI::App* command = keys.add_subcommand(name, help);
  command->add_option("--api-keys", options->file, "The keys file, as for 'kvasir serve'")
      ->required()
      ->type_name("FILE");
  command->callback([options, run, &outcome] { outcome.status = run(*options); });
  return command;
}

void add_json(CLI::App& command, KeysOptions& options) {
  command.add_flag("--json", options.json, "One JSON object on standard output");
}

void add_size(CLI::App& command, const std::string& name, std::optional<std::uint64_t>& bytes,
              const std::string& help) {
  command.add_option(name, bytes, help)->transform(to_bytes())->type_name("BYTES");
}

}  // namespace

void add_keys(CLI::App& program, Outcome& outcome) {
  CLI::App* keys = program.add_subcommand("keys", "API keys and tenants of 'kvasir serve'");
  keys->require_subcommand(1);
  const auto options = std::make_shared<KeysOptions>();

  CLI::App* tenant = add_command(*keys, outcome, options, "tenant", "Make a tenant, or change its limits", set_tenant);
  tenant->add_option("name", options->tenant, "1 to 64 letters, digits, '-' and '_'")->required();
  add_size(*tenant, "--floor", options->floor, "KV memory that is theirs whatever others want");
  add_size(*tenant, "--ceiling", options->ceiling, "The most KV memory that they may hold; 0: no limit");
  tenant->add_option("--requests-per-minute", options->requests, "0: no limit");
  tenant->add_option("--tokens-per-minute", options->tokens, "Of prompts and answers together; 0: no limit");
  tenant->add_option("--concurrent", options->concurrent, "Requests at a time; 0: no limit");
  tenant->add_option("--priority", options->priority, "Added to that of each request; less runs earlier");
  tenant->add_flag("--remove", options->remove,
                   "Remove the tenant, whose keys must have been revoked; its sessions and usage stay");

  CLI::App* add = add_command(*keys, outcome, options, "add", "Make a key, and print it this once", add_key);
  add->add_option("--tenant", options->tenant, "Whose key it is")->required();
  add->add_option("--expires", options->expires,
                  "A date such as 2027-01-31 (UTC), or a time from now such as 90d or 12h")
      ->type_name("WHEN");
  add->add_option("--priority", options->priority, "Added to that of the tenant; less runs earlier");
  add->add_flag("--operator", options->is_operator,
                "Also lets it read figures of the whole server, which show other tenants, such as /metrics");
  add_json(*add, *options);

  add_json(*add_command(*keys, outcome, options, "list", "List tenants and keys; keys themselves are never shown",
                        list_keys),
           *options);
  add_command(*keys, outcome, options, "revoke", "End a key: a running server refuses it within a second", revoke_key)
      ->add_option("id", options->id, "The key's id, from 'kvasir keys list'")
      ->required();
  add_command(*keys, outcome, options, "prune", "Drop the entries of revoked and expired keys", prune_keys);
}

}  // namespace kvasir::cli
