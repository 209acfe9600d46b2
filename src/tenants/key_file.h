// The keys file: tenants with their limits, and API keys as hashes. It is TOML; `kvasir keys` edits it, and the server
// reads it again whenever it changes.
//
//   version = 1
//   secret = "..."                # 32 random bytes, base64url: the key of all hashes
//
//   [tenants.research]
//   id = "b1d00c7e"               # random; distinguishes it from an earlier tenant of this name
//   floor = "512MiB"              # KV memory that the tenant can always have
//   ceiling = "2GiB"              # the most KV memory that it may hold
//   requests-per-minute = 60
//   tokens-per-minute = 100000    # of prompts and answers
//   concurrent = 8                # requests at a time
//   priority = 0                  # added to that of each request; less runs earlier
//
//   [[keys]]
//   id = "3f9a1c20"
//   tenant = "research"
//   hash = "..."                  # of the key, which itself is not stored
//   created = 2026-11-23T08:00:00Z
//   expires = 2027-11-23T08:00:00Z
//   priority = 0                  # added to that of the tenant
//   operator = false              # may read figures of the whole server, such as /metrics
//
// A limit that is missing or 0 does not limit. A revoked key keeps its entry, with `revoked` in place of `hash`.
//
// The secret makes hashes of one file useless for another. It must stay secret, since prefix-cache salts are derived
// from it (KeyRing).
//
// Thread-safety: plain values and pure functions; the functions of files may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "tenants/secrets.h"

namespace kvasir::tenants {

struct Tenant {
  std::string name;           // 1 to 64 letters, digits, '-' and '_'
  std::string id;             // in the same form; empty in files of older versions: see KeyRing::Entry::salt
  std::uint64_t floor = 0;    // bytes
  std::uint64_t ceiling = 0;  // bytes; 0: no limit
  std::int64_t requests_per_minute = 0;
  std::int64_t tokens_per_minute = 0;
  std::int64_t concurrent = 0;
  int priority = 0;
  bool operator==(const Tenant&) const = default;
};

// Times are in seconds since 1970.
struct ApiKey {
  std::string id;
  std::string tenant;
  Digest hash{};  // of a key that is not revoked
  std::int64_t created = 0;
  std::int64_t expires = 0;  // 0: never
  std::int64_t revoked = 0;  // 0: not revoked
  int priority = 0;
  bool is_operator = false;  // may read figures of the whole server, which show other tenants
  bool operator==(const ApiKey&) const = default;
};

struct KeyFile {
  Digest secret{};
  std::vector<Tenant> tenants;
  std::vector<ApiKey> keys;
  bool operator==(const KeyFile&) const = default;

  // Return null for an unknown name or id.
  Tenant* tenant(std::string_view name);
  ApiKey* key(std::string_view id);
};

constexpr std::size_t kMostTenants = 1000;
constexpr std::size_t kMostKeys = 10000;

// Returns the hash by which a key is stored.
Digest api_key_hash(const Digest& secret, std::string_view key);

// Errors: kInvalidArgument naming the field, the tenant or key, and the accepted values; also for names that occur
// twice, a key of an unknown tenant, a ceiling below its floor, and too many of either.
Status check_key_file(const KeyFile& file);

// Reads the text of a file. Errors: kDataLoss (not TOML; with the line), kUnsupported (another version),
// kInvalidArgument for a field that is unknown, missing or of the wrong type; as check_key_file. No error quotes a hash
// or the secret.
Result<KeyFile> parse_key_file(std::string_view text);

// Returns the text that parse_key_file reads.
std::string key_file_text(const KeyFile& file);

// Reads a file of at most 16 MiB. Errors: kNotFound; kInvalidArgument if users other than its owner and group may read
// it, or users other than its owner may write it; as parse_key_file, with the path in front.
Result<KeyFile> load_key_file(const std::string& path);

// Writes a file atomically; a new file can be read only by its owner. Comments of the old file are lost. Errors: as
// check_key_file and AtomicFile.
Status save_key_file(const std::string& path, const KeyFile& file);

// Keeps other processes from editing the same file while it lives, so that two `kvasir keys` at once lose nothing.
class KeyFileLock {
 public:
  // Waits for the lock. Errors: those of opening the file's folder.
  static Result<KeyFileLock> take(const std::string& path);
  KeyFileLock(KeyFileLock&& other) noexcept;
  KeyFileLock& operator=(KeyFileLock&&) = delete;
  ~KeyFileLock();

 private:
  explicit KeyFileLock(int folder) : folder_(folder) {}
  int folder_;
};

}  // namespace kvasir::tenants
