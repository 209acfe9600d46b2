#include "tenants/secrets.h"

#include <gtest/gtest.h>

#include <set>

#include "tenants/dates.h"

namespace kvasir::tenants {
namespace {

TEST(Secrets, KeysHave256BitsAndDiffer) {
  std::set<std::string> keys;
  for (int i = 0; i < 1000; ++i) {
    const std::string key = random_api_key();
    EXPECT_TRUE(key.starts_with("kvasir_"));
    ASSERT_EQ(key.size(), 7 + 43U);
    EXPECT_TRUE(digest_from_text(key.substr(7)).has_value());
    EXPECT_TRUE(keys.insert(key).second);
  }
}

// The first answer of BLAKE2b-256 with a key can be had from any implementation: Python's
// hashlib.blake2b(b'api key\0abc', key=bytes(range(32)), digest_size=32).
TEST(Secrets, HashIsKeyedBlake2b) {
  Digest secret{};
  for (std::size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<std::uint8_t>(i);
  EXPECT_EQ(digest_text(keyed_hash(secret, "api key", "abc")), "5kg03b_j_x_bGJxtVPoSCmZqptnS_RsSSxzL16ogbko");
}

TEST(Secrets, HashDependsOnSecretPurposeAndText) {
  const Digest a = random_secret(), b = random_secret();
  const Digest hash = keyed_hash(a, "x", "y");
  EXPECT_EQ(hash, keyed_hash(a, "x", "y"));
  EXPECT_NE(hash, keyed_hash(b, "x", "y"));
  EXPECT_NE(hash, keyed_hash(a, "xy", ""));
  EXPECT_NE(hash, keyed_hash(a, "x", "z"));
}

TEST(Secrets, EqualSeesEveryByte) {
  const Digest a = random_secret();
  EXPECT_TRUE(equal_in_constant_time(a, a));
  for (std::size_t i = 0; i < a.size(); ++i) {
    Digest b = a;
    b[i] ^= 0x10;
    EXPECT_FALSE(equal_in_constant_time(a, b)) << i;
  }
}

TEST(Secrets, TextGoesBothWays) {
  const Digest a = random_secret();
  const std::string text = digest_text(a);
  EXPECT_EQ(digest_from_text(text), a);
  EXPECT_FALSE(digest_from_text(""));
  EXPECT_FALSE(digest_from_text(text + "A"));
  EXPECT_FALSE(digest_from_text(text.substr(1)));
  EXPECT_FALSE(digest_from_text(text.substr(0, 42) + "="));
  EXPECT_FALSE(digest_from_text(text.substr(0, 42) + " "));
}

TEST(Dates, MomentsGoBothWays) {
  EXPECT_EQ(parse_moment("1970-01-01"), 0);
  EXPECT_EQ(parse_moment("2024-02-29T23:59:59Z"), 1709251199);
  EXPECT_EQ(moment_text(1709251199), "2024-02-29T23:59:59Z");
  for (const char* wrong : {"", "2023-02-29", "2023-13-01", "2023-1-1", "2023-01-01T24:00:00Z", "2023-01-01T00:00:00",
                            "2023-01-01 ", "+023-01-01", "tomorrow"})
    EXPECT_FALSE(parse_moment(wrong)) << wrong;
}

TEST(Dates, SpansAreHoursOrDays) {
  EXPECT_EQ(parse_span("12h"), 12 * 3600);
  EXPECT_EQ(parse_span("90d"), 90 * 86400);
  for (const char* wrong : {"", "d", "0d", "-1d", "1", "1w", "1.5d", "36501d", "99999999d"})
    EXPECT_FALSE(parse_span(wrong)) << wrong;
}

}  // namespace
}  // namespace kvasir::tenants
