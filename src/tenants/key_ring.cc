#include "tenants/key_ring.h"

#include <algorithm>

namespace kvasir::tenants {

int TenantNumbers::number_of(std::string_view name) {
  const auto [at, is_new] = numbers_.try_emplace(std::string(name), count() + 1);
  if (is_new) names_.emplace_back(name);
  return at->second;
}

std::optional<int> TenantNumbers::find(std::string_view name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? std::nullopt : std::optional<int>(found->second);
}

std::string_view TenantNumbers::name_of(int number) const {
  if (number < 1 || number > count()) return {};
  return names_[static_cast<std::size_t>(number) - 1];
}

KeyRing::KeyRing(const KeyFile& file, TenantNumbers& numbers) : secret_(file.secret) {
  std::map<std::string_view, Entry> tenants;
  for (const Tenant& tenant : file.tenants) {
    Entry& entry = tenants[tenant.name];
    entry.tenant = tenant.name;
    entry.tenant_number = numbers.number_of(tenant.name);
    // No name has a space. A tenant without an id keeps the salt, and so the prefixes, of versions without ids.
    const std::string whose = tenant.id.empty() ? tenant.name : tenant.name + " " + tenant.id;
    entry.salt = digest_text(keyed_hash(file.secret, "prefix salt", whose));
    entry.priority = tenant.priority;
  }
  for (const ApiKey& key : file.keys) {
    if (key.revoked != 0) continue;
    Entry entry = tenants.at(key.tenant);
    entry.key_id = key.id;
    entry.priority += key.priority;
    entry.expires = key.expires;
    entry.is_operator = key.is_operator;
    hashes_.push_back(key.hash);
    entries_.push_back(std::move(entry));
  }
}

const KeyRing::Entry* KeyRing::find(std::string_view presented, std::int64_t now) const {
  const Digest asked = api_key_hash(secret_, presented);
  std::size_t found = entries_.size();
  for (std::size_t i = 0; i < hashes_.size(); ++i) {
    // Selected without a branch: the loop does the same for every key.
    const std::size_t same = std::size_t{0} - std::size_t{equal_in_constant_time(asked, hashes_[i])};
    found ^= (found ^ i) & same;
    ++comparisons_;
  }
  if (found == entries_.size()) return nullptr;
  const Entry& entry = entries_[found];
  return entry.expires != 0 && entry.expires <= now ? nullptr : &entry;
}

std::size_t KeyRing::valid(std::int64_t now) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(entries_, [&](const Entry& e) { return e.expires == 0 || e.expires > now; }));
}

}  // namespace kvasir::tenants
