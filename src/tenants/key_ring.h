// The keys of one keys file, as the server holds them until the file changes.
// Thread-safety: one thread at a time; const functions change only a counter.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tenants/key_file.h"

namespace kvasir::tenants {

// Numbers tenants for the engine (RequestOptions::tenant), from 1. A name keeps its number while this lives, even when
// it is no longer in the keys file.
class TenantNumbers {
 public:
  // Returns the name's number; assigns the next one to a new name.
  int number_of(std::string_view name);
  // Returns the number of a name that has one.
  std::optional<int> find(std::string_view name) const;
  // Returns "" for 0, which stands for requests without a tenant, and for an unassigned number.
  std::string_view name_of(int number) const;
  int count() const { return static_cast<int>(names_.size()); }

 private:
  std::map<std::string, int, std::less<>> numbers_;
  std::vector<std::string> names_;
};

class KeyRing {
 public:
  struct Entry {
    std::string key_id;
    std::string tenant;
    int tenant_number = 0;
    // Salt of the tenant's cached prefixes: 43 characters, equal in every run. It depends on the tenant's id too, so a
    // later tenant of the same name finds none of them, in memory, on disk or in Redis.
    std::string salt;
    int priority = 0;  // of tenant and key together
    bool is_operator = false;
    std::int64_t expires = 0;
  };

  // REQUIRES: a file that check_key_file accepts.
  KeyRing(const KeyFile& file, TenantNumbers& numbers);

  // Returns the entry of a key that is neither revoked nor expired; null for any other text. Hashes the text once and
  // compares it with every key, in a time that depends neither on the text nor on which key matches.
  const Entry* find(std::string_view presented, std::int64_t now) const;

  std::size_t size() const { return entries_.size(); }
  // Keys that have not expired.
  std::size_t valid(std::int64_t now) const;
  // Comparisons of hashes so far, for tests.
  std::uint64_t comparisons() const { return comparisons_; }

 private:
  Digest secret_;
  std::vector<Digest> hashes_;  // of entries_
  std::vector<Entry> entries_;
  mutable std::uint64_t comparisons_ = 0;
};

}  // namespace kvasir::tenants
