#include "tenants/key_ring.h"

#include <gtest/gtest.h>

#include <set>

namespace kvasir::tenants {
namespace {

constexpr std::int64_t kNow = 1'800'000'000;

// Two tenants and `keys` keys; key i is "key i", of tenant "a" if i is even.
KeyFile file_of(int keys) {
  KeyFile file;
  file.secret = random_secret();
  for (const char* name : {"a", "b"}) {
    Tenant& tenant = file.tenants.emplace_back();
    tenant.name = name;
    tenant.priority = name[0] == 'b' ? 10 : 0;
  }
  for (int i = 0; i < keys; ++i) {
    ApiKey& key = file.keys.emplace_back();
    key.id = "k" + std::to_string(i);
    key.tenant = i % 2 == 0 ? "a" : "b";
    key.hash = api_key_hash(file.secret, "key " + std::to_string(i));
    key.created = 1;
    key.priority = i;
  }
  return file;
}

TEST(KeyRing, FindsEachKeyAndNoOther) {
  TenantNumbers numbers;
  const KeyRing ring(file_of(50), numbers);
  for (int i = 0; i < 50; ++i) {
    const KeyRing::Entry* entry = ring.find("key " + std::to_string(i), kNow);
    ASSERT_NE(entry, nullptr) << i;
    EXPECT_EQ(entry->key_id, "k" + std::to_string(i));
    EXPECT_EQ(entry->tenant, i % 2 == 0 ? "a" : "b");
    EXPECT_EQ(entry->tenant_number, i % 2 == 0 ? 1 : 2);
    EXPECT_EQ(entry->priority, i + (i % 2 == 0 ? 0 : 10));
  }
  for (const char* wrong : {"", "key", "key 50", "key 1 ", "KEY 1", "k1"}) EXPECT_EQ(ring.find(wrong, kNow), nullptr);
  EXPECT_EQ(ring.find(std::string_view("key 1\0", 6), kNow), nullptr);
}

// Which key was presented, whether there is such a key, and how long the text is must not change what is compared.
TEST(KeyRing, ComparesWithEveryKeyWhateverIsPresented) {
  TenantNumbers numbers;
  KeyFile file = file_of(40);
  file.keys[3].expires = kNow - 1;
  const KeyRing ring(file, numbers);
  std::uint64_t before = 0;
  for (const std::string& presented : {std::string("key 0"), std::string("key 39"), std::string("key 3"),
                                       std::string("none"), std::string(), std::string(10000, 'x')}) {
    static_cast<void>(ring.find(presented, kNow));
    EXPECT_EQ(ring.comparisons() - before, 40U) << presented.substr(0, 10);
    before = ring.comparisons();
  }
}

TEST(KeyRing, RevokedAndExpiredKeysDoNotPass) {
  TenantNumbers numbers;
  KeyFile file = file_of(3);
  file.keys[0].revoked = 5;
  file.keys[1].expires = kNow;
  file.keys[2].expires = kNow + 1;
  const KeyRing ring(file, numbers);
  EXPECT_EQ(ring.find("key 0", kNow), nullptr);
  EXPECT_NE(ring.find("key 1", kNow - 1), nullptr);
  EXPECT_EQ(ring.find("key 1", kNow), nullptr);
  EXPECT_NE(ring.find("key 2", kNow), nullptr);
  EXPECT_EQ(ring.valid(kNow), 1U);
  // A revoked key has a hash of zeros: no text may be found by it.
  EXPECT_EQ(ring.size(), 2U);
}

TEST(KeyRing, SaltsDifferByTenantAndSecret) {
  TenantNumbers numbers;
  const KeyFile file = file_of(4), other = file_of(4);
  const KeyRing ring(file, numbers), again(file, numbers), elsewhere(other, numbers);
  const std::string a = ring.find("key 0", kNow)->salt;
  EXPECT_EQ(a.size(), 43U);
  EXPECT_EQ(a, ring.find("key 2", kNow)->salt);   // of the same tenant
  EXPECT_EQ(a, again.find("key 0", kNow)->salt);  // in the next run
  EXPECT_NE(a, ring.find("key 1", kNow)->salt);
  EXPECT_NE(a, elsewhere.find("key 0", kNow)->salt);
}

// A name that is given to somebody else, in the same file.
TEST(KeyRing, SaltsDifferByTheTenantsId) {
  TenantNumbers numbers;
  KeyFile file = file_of(4);
  const std::string before = KeyRing(file, numbers).find("key 0", kNow)->salt;
  EXPECT_EQ(before, digest_text(keyed_hash(file.secret, "prefix salt", file.keys[0].tenant))) << "no id: as ever";
  std::set<std::string> salts = {before};
  for (const std::string id : {"00000001", "00000002"}) {
    file.tenant(file.keys[0].tenant)->id = id;
    const Result<KeyFile> read = parse_key_file(key_file_text(file));
    ASSERT_TRUE(read.ok()) << read.status().message();
    salts.insert(KeyRing(*read, numbers).find("key 0", kNow)->salt);
  }
  EXPECT_EQ(salts.size(), 3U);
}

TEST(TenantNumbers, KeepTheirNumbers) {
  TenantNumbers numbers;
  EXPECT_EQ(numbers.number_of("a"), 1);
  EXPECT_EQ(numbers.number_of("b"), 2);
  EXPECT_EQ(numbers.number_of("a"), 1);
  EXPECT_EQ(numbers.find("c"), std::nullopt);
  EXPECT_EQ(numbers.find("b"), 2);
  EXPECT_EQ(numbers.name_of(2), "b");
  EXPECT_EQ(numbers.name_of(0), "");
  EXPECT_EQ(numbers.name_of(3), "");
  EXPECT_EQ(numbers.count(), 2);
}

}  // namespace
}  // namespace kvasir::tenants
