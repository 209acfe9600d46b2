#include "tenants/key_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <set>
#include <span>
#include <utility>

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_WINDOWS_COMPAT 0
#include <toml++/toml.h>

#include "base/atomic_file.h"
#include "base/byte_size.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "tenants/dates.h"

namespace kvasir::tenants {
namespace {

constexpr std::size_t kMostFileBytes = 16 << 20;
constexpr std::int64_t kMostLimit = 1'000'000'000'000;
constexpr int kMostPriority = 1'000'000;
constexpr std::size_t kLongestName = 64;  // of tenants and ids

bool is_name(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  return !text.empty() && text.size() <= kLongestName && std::ranges::all_of(text, allowed);
}

// Returns text that is safe in a message: short, and without control characters.
std::string shown(std::string_view text) {
  std::string safe(text.substr(0, 64));
  std::ranges::replace_if(
      safe, [](char c) { return c < ' ' || c > '~'; }, '?');
  return safe;
}

// Returns the text with non-ASCII characters in comment lines replaced. toml++ 3.3 has undefined behaviour if a key
// begins with some of them (such as U+FEBF), and no field needs any. Errors: kDataLoss for one in another line.
Result<std::string> ascii_of(std::string_view text) {
  std::string ascii(text);
  bool comment = false, begins = true;
  int line = 1;
  for (char& c : ascii) {
    if (c == '\n') {
      ++line;
      comment = false;
      begins = true;
    } else if (begins && c != ' ' && c != '\t') {
      comment = c == '#';
      begins = false;
    }
    if ((static_cast<unsigned char>(c) & 0x80) == 0) continue;
    if (!comment)
      return data_loss("line {} has a character other than ASCII; only a line that is a comment may have one", line);
    c = '?';
  }
  return ascii;
}

// Reads the fields of one table, and reports the one that is wrong.
class FieldReader {
 public:
  FieldReader(const toml::table& table, std::string where) : table_(table), where_(std::move(where)) {}

  // Refuses fields that were never read: a misspelt limit would have no effect.
  Status done() {
    for (const auto& [name, value] : table_) {
      if (!status_.ok()) break;
      if (!known_.contains(name.str())) fail(name.str(), "is not a field that it can have");
    }
    return status_;
  }

  void text(std::string_view name, std::string& value, bool needed) {
    const toml::node* node = find(name, needed);
    if (node == nullptr) return;
    const auto* found = node->as_string();
    if (found == nullptr) return fail(name, "must be a text in quotation marks");
    value = found->get();
  }

  template <class Number>
  void number(std::string_view name, Number& value, std::int64_t least, std::int64_t most) {
    const toml::node* node = find(name, false);
    if (node == nullptr) return;
    const auto* found = node->as_integer();
    if (found == nullptr || found->get() < least || found->get() > most)
      return fail(name, fmt::format("must be a whole number from {} to {}", least, most));
    value = static_cast<Number>(found->get());
  }

  void flag(std::string_view name, bool& value) {
    const toml::node* node = find(name, false);
    if (node == nullptr) return;
    const auto* found = node->as_boolean();
    if (found == nullptr) return fail(name, "must be true or false");
    value = found->get();
  }

  void bytes(std::string_view name, std::uint64_t& value) {
    const toml::node* node = find(name, false);
    if (node == nullptr) return;
    if (const auto* number = node->as_integer(); number != nullptr && number->get() >= 0) {
      value = static_cast<std::uint64_t>(number->get());
      return;
    }
    const auto* text = node->as_string();
    const std::optional<std::uint64_t> size = text != nullptr ? parse_byte_size(text->get()) : std::nullopt;
    if (!size) return fail(name, "must be a size such as \"512MiB\"");
    value = *size;
  }

  void digest(std::string_view name, Digest& value, bool needed) {
    std::string text_value;
    text(name, text_value, needed);
    if (text_value.empty()) return;
    const std::optional<Digest> read = digest_from_text(text_value);
    if (!read) return fail(name, "is damaged: it must be 43 characters of base64url");
    value = *read;
  }

  void moment(std::string_view name, std::int64_t& value, bool needed) {
    const toml::node* node = find(name, needed);
    if (node == nullptr) return;
    constexpr std::string_view kForms =
        "must be a date such as 2027-01-31 or 2027-01-31T12:00:00Z, without quotation marks";
    std::string text;
    if (const auto* date = node->as_date()) {
      text = fmt::format("{:04}-{:02}-{:02}", date->get().year, date->get().month, date->get().day);
    } else if (const auto* full = node->as_date_time(); full != nullptr && full->get().offset.has_value()) {
      const toml::date_time& at = full->get();
      text = fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", at.date.year, at.date.month, at.date.day, at.time.hour,
                         at.time.minute, at.time.second);
      if (at.offset->minutes != 0) return fail(name, "must be in UTC, with a Z at its end");
    } else {
      return fail(name, kForms);
    }
    const std::optional<std::int64_t> read = parse_moment(text);
    if (!read || *read <= 0) return fail(name, kForms);
    value = *read;
  }

  // Returns null if there is none.
  const toml::table* table(std::string_view name) {
    const toml::node* node = find(name, false);
    if (node != nullptr && !node->is_table()) fail(name, "must be tables, each headed [tenants.NAME]");
    return node != nullptr ? node->as_table() : nullptr;
  }
  const toml::array* tables(std::string_view name) {
    const toml::node* node = find(name, false);
    if (node != nullptr && !node->is_array()) fail(name, "must be tables, each headed [[keys]]");
    return node != nullptr ? node->as_array() : nullptr;
  }

  bool has(std::string_view name) const { return table_.contains(name); }

  void fail(std::string_view name, std::string_view problem) {
    if (status_.ok()) status_ = invalid_argument("{}: '{}' {}", where_, shown(name), problem);
  }

 private:
  const toml::node* find(std::string_view name, bool needed) {
    known_.insert(std::string(name));
    const toml::node* node = table_.get(name);
    if (node == nullptr && needed) fail(name, "is missing");
    return node;
  }

  const toml::table& table_;
  std::string where_;
  std::set<std::string, std::less<>> known_;
  Status status_;
};

Result<Tenant> read_tenant(std::string_view name, const toml::node& node) {
  const toml::table* table = node.as_table();
  if (table == nullptr) return invalid_argument("'tenants.{}' must be a table", shown(name));
  FieldReader fields(*table, fmt::format("tenant '{}'", shown(name)));
  Tenant tenant;
  tenant.name = name;
  fields.text("id", tenant.id, false);
  fields.bytes("floor", tenant.floor);
  fields.bytes("ceiling", tenant.ceiling);
  fields.number("requests-per-minute", tenant.requests_per_minute, 0, kMostLimit);
  fields.number("tokens-per-minute", tenant.tokens_per_minute, 0, kMostLimit);
  fields.number("concurrent", tenant.concurrent, 0, kMostLimit);
  fields.number("priority", tenant.priority, -kMostPriority, kMostPriority);
  KVASIR_RETURN_IF_ERROR(fields.done());
  return tenant;
}

Result<ApiKey> read_key(std::size_t number, const toml::node& node) {
  const toml::table* table = node.as_table();
  if (table == nullptr) return invalid_argument("'keys' must be tables, each headed [[keys]]");
  const std::string id = (*table)["id"].value_or(std::string());
  FieldReader fields(*table, id.empty() ? fmt::format("key number {}", number) : fmt::format("key '{}'", shown(id)));
  ApiKey key;
  fields.text("id", key.id, true);
  fields.text("tenant", key.tenant, true);
  fields.moment("created", key.created, true);
  fields.moment("expires", key.expires, false);
  fields.moment("revoked", key.revoked, false);
  fields.digest("hash", key.hash, !fields.has("revoked"));
  fields.number("priority", key.priority, -kMostPriority, kMostPriority);
  fields.flag("operator", key.is_operator);
  KVASIR_RETURN_IF_ERROR(fields.done());
  if (key.revoked != 0) key.hash = {};
  return key;
}

Status check_tenant(const Tenant& tenant) {
  if (!is_name(tenant.name))
    return tenant.name.size() > kLongestName
               ? invalid_argument("the name of a tenant '{}...' has {} characters; {} are the most",
                                  shown(tenant.name).substr(0, 20), tenant.name.size(), kLongestName)
               : invalid_argument("'{}' is no name of a tenant; give 1 to {} letters, digits, '-' and '_'",
                                  shown(tenant.name), kLongestName);
  if (!tenant.id.empty() && !is_name(tenant.id))
    return invalid_argument("tenant '{}' has the id '{}'; give 1 to {} letters, digits, '-' and '_'", tenant.name,
                            shown(tenant.id), kLongestName);
  if (tenant.ceiling > 0 && tenant.ceiling < tenant.floor)
    return invalid_argument("tenant '{}' has a ceiling of {}, which is below its floor of {}", tenant.name,
                            byte_size_text(tenant.ceiling), byte_size_text(tenant.floor));
  const std::pair<std::string_view, std::int64_t> limits[] = {{"requests-per-minute", tenant.requests_per_minute},
                                                              {"tokens-per-minute", tenant.tokens_per_minute},
                                                              {"concurrent", tenant.concurrent}};
  for (const auto& [name, limit] : limits)
    if (limit < 0 || limit > kMostLimit)
      return invalid_argument("{} of tenant '{}' is {}; give 0 (no limit) to {}", name, tenant.name, limit, kMostLimit);
  return {};
}

Status check_priority(int priority) {
  if (priority >= -kMostPriority && priority <= kMostPriority) return {};
  return invalid_argument("a priority of {} is outside {} to {}", priority, -kMostPriority, kMostPriority);
}

void append_number(std::string& text, std::string_view name, std::int64_t value) {
  if (value != 0) text += fmt::format("{} = {}\n", name, value);
}
void append_bytes(std::string& text, std::string_view name, std::uint64_t value) {
  if (value != 0) text += fmt::format("{} = \"{}\"\n", name, byte_size_text(value));
}
void append_moment(std::string& text, std::string_view name, std::int64_t value) {
  if (value != 0) text += fmt::format("{} = {}\n", name, moment_text(value));
}

}  // namespace

Tenant* KeyFile::tenant(std::string_view name) {
  const auto found = std::ranges::find(tenants, name, &Tenant::name);
  return found == tenants.end() ? nullptr : &*found;
}

ApiKey* KeyFile::key(std::string_view id) {
  const auto found = std::ranges::find(keys, id, &ApiKey::id);
  return found == keys.end() ? nullptr : &*found;
}

Digest api_key_hash(const Digest& secret, std::string_view key) {
  return keyed_hash(secret, "api key", key);
}

Status check_key_file(const KeyFile& file) {
  if (file.tenants.size() > kMostTenants)
    return invalid_argument("there are {} tenants; {} are the most", file.tenants.size(), kMostTenants);
  if (file.keys.size() > kMostKeys)
    return invalid_argument("there are {} keys; {} are the most: remove revoked ones with 'kvasir keys prune'",
                            file.keys.size(), kMostKeys);
  std::set<std::string_view> names, ids;
  for (const Tenant& tenant : file.tenants) {
    KVASIR_RETURN_IF_ERROR(check_tenant(tenant));
    KVASIR_RETURN_IF_ERROR(check_priority(tenant.priority));
    if (!names.insert(tenant.name).second) return invalid_argument("there are two tenants '{}'", tenant.name);
  }
  for (const ApiKey& key : file.keys) {
    if (!is_name(key.id)) return invalid_argument("'{}' is no id of a key", shown(key.id));
    KVASIR_RETURN_IF_ERROR(check_priority(key.priority));
    if (!ids.insert(key.id).second) return invalid_argument("there are two keys with the id '{}'", key.id);
    if (!names.contains(key.tenant))
      return invalid_argument("key '{}' is of tenant '{}', which the file does not have; add [tenants.{}]", key.id,
                              shown(key.tenant), shown(key.tenant));
  }
  return {};
}

Result<KeyFile> parse_key_file(std::string_view text) {
  KVASIR_ASSIGN_OR_RETURN(const std::string ascii, ascii_of(text));
  const toml::parse_result parsed = toml::parse(ascii);
  if (!parsed)
    return data_loss("line {} is not valid TOML: {}", parsed.error().source().begin.line,
                     shown(parsed.error().description()));
  const toml::table& root = parsed.table();
  FieldReader fields(root, "the file");
  KeyFile file;
  std::int64_t version = 0;
  fields.number("version", version, 0, std::numeric_limits<std::int64_t>::max());
  if (version != 1)
    return unsupported("the file does not say 'version = 1': it is no keys file, or one of a newer Kvasir");
  fields.digest("secret", file.secret, true);
  const toml::table* tenants = fields.table("tenants");
  const toml::array* keys = fields.tables("keys");
  KVASIR_RETURN_IF_ERROR(fields.done());
  if (tenants != nullptr) {
    for (const auto& [name, node] : *tenants) {
      KVASIR_ASSIGN_OR_RETURN(Tenant tenant, read_tenant(name.str(), node));
      file.tenants.push_back(std::move(tenant));
    }
  }
  if (keys != nullptr) {
    for (const toml::node& node : *keys) {
      KVASIR_ASSIGN_OR_RETURN(ApiKey key, read_key(file.keys.size() + 1, node));
      file.keys.push_back(std::move(key));
    }
  }
  KVASIR_RETURN_IF_ERROR(check_key_file(file));
  return file;
}

std::string key_file_text(const KeyFile& file) {
  std::string text = fmt::format(
      "# API keys and tenants of a Kvasir server. 'kvasir keys' writes this file anew and drops comments.\n"
      "version = 1\nsecret = \"{}\"\n",
      digest_text(file.secret));
  for (const Tenant& tenant : file.tenants) {
    text += fmt::format("\n[tenants.{}]\n", tenant.name);
    if (!tenant.id.empty()) text += fmt::format("id = \"{}\"\n", tenant.id);
    append_bytes(text, "floor", tenant.floor);
    append_bytes(text, "ceiling", tenant.ceiling);
    append_number(text, "requests-per-minute", tenant.requests_per_minute);
    append_number(text, "tokens-per-minute", tenant.tokens_per_minute);
    append_number(text, "concurrent", tenant.concurrent);
    append_number(text, "priority", tenant.priority);
  }
  for (const ApiKey& key : file.keys) {
    text += fmt::format("\n[[keys]]\nid = \"{}\"\ntenant = \"{}\"\n", key.id, key.tenant);
    if (key.revoked == 0) text += fmt::format("hash = \"{}\"\n", digest_text(key.hash));
    append_moment(text, "created", key.created);
    append_moment(text, "expires", key.expires);
    append_moment(text, "revoked", key.revoked);
    append_number(text, "priority", key.priority);
    if (key.is_operator) text += "operator = true\n";
  }
  return text;
}

Result<KeyFile> load_key_file(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) {
    if (errno != ENOENT) return errno_status("open", path);
    return make_status(StatusCode::kNotFound,
                       "there is no keys file '{}'; make one with 'kvasir keys tenant NAME --api-keys FILE'", path);
  }
  if (S_ISDIR(st.st_mode)) return invalid_argument("'{}' is a folder; give the keys file itself", path);
  if ((st.st_mode & 07) != 0 || (st.st_mode & 020) != 0)
    return invalid_argument("'{}' may be {} by other users (mode {:03o}); mend it with: chmod 600 '{}'", path,
                            (st.st_mode & 022) != 0 ? "changed" : "read", st.st_mode & 0777, path);
  const Result<std::string> text = read_file(path, kMostFileBytes);
  if (!text.ok() && ::access(path.c_str(), R_OK) != 0 && errno == EACCES)
    return text.status().with_message(
        fmt::format("{} (mode {:03o}); let a group of the server's user read it: chgrp GROUP '{}' && chmod 640 '{}'",
                    text.status().message(), st.st_mode & 0777, path, path));
  if (!text.ok()) return text.status();
  Result<KeyFile> file = parse_key_file(*text);
  if (file.ok()) return file;
  return file.status().with_message(fmt::format("keys file '{}': {}", path, file.status().message()));
}

Status save_key_file(const std::string& path, const KeyFile& file) {
  KVASIR_RETURN_IF_ERROR(check_key_file(file));
  const std::string text = key_file_text(file);
  KVASIR_ASSIGN_OR_RETURN(AtomicFile out, AtomicFile::create(path, 0600));
  KVASIR_RETURN_IF_ERROR(out.write(std::as_bytes(std::span(text))));
  return out.commit();
}

Result<KeyFileLock> KeyFileLock::take(const std::string& path) {
  // Locks the folder, not the file, which each edit replaces.
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  KeyFileLock lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.folder_ < 0) return errno_status("open", folder);
  while (::flock(lock.folder_, LOCK_EX) != 0)
    if (errno != EINTR) return errno_status("lock", folder);
  return lock;
}

KeyFileLock::KeyFileLock(KeyFileLock&& other) noexcept : folder_(std::exchange(other.folder_, -1)) {}

KeyFileLock::~KeyFileLock() {
  if (folder_ >= 0) ::close(folder_);
}

}  // namespace kvasir::tenants
