#include "tenants/key_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>

#include "tenants/test_folder.h"

namespace kvasir::tenants {
namespace {

using test::TestFolder;

KeyFile sample() {
  KeyFile file;
  file.secret = random_secret();
  Tenant research;
  research.name = "research";
  research.id = "b1d00c7e";
  research.floor = std::uint64_t{512} << 20;
  research.ceiling = std::uint64_t{2} << 30;
  research.requests_per_minute = 60;
  research.tokens_per_minute = 100000;
  research.concurrent = 8;
  research.priority = -2;
  Tenant odd;
  odd.name = "Odd_name-1";
  odd.floor = 1001;
  file.tenants = {odd, research};
  ApiKey key;
  key.id = "3f9a1c20";
  key.tenant = "research";
  key.hash = api_key_hash(file.secret, "a key");
  key.created = 1795420800;
  key.expires = 1826956800;
  key.priority = 5;
  key.is_operator = true;
  ApiKey revoked;
  revoked.id = "00000001";
  revoked.tenant = "Odd_name-1";
  revoked.created = 1795420801;
  revoked.revoked = 1795420900;
  file.keys = {key, revoked};
  return file;
}

TEST(KeyFile, ReadsWhatItWrites) {
  const KeyFile file = sample();
  const Result<KeyFile> read = parse_key_file(key_file_text(file));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, file);
}

TEST(KeyFile, TextIsForPeopleAndHasNoKey) {
  const std::string text = key_file_text(sample());
  EXPECT_NE(
      text.find(
          "[tenants.research]\nid = \"b1d00c7e\"\nfloor = \"512MiB\"\nceiling = \"2GiB\"\nrequests-per-minute = 60\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("created = 2026-11-23T08:00:00Z"), std::string::npos) << text;
  EXPECT_EQ(text.find("a key\""), std::string::npos);
}

TEST(KeyFile, ReadsWhatPeopleWrite) {
  const std::string head = "version = 1\nsecret = \"" + digest_text(random_secret()) + "\"\n";
  const std::string hash = "hash = \"" + digest_text(random_secret()) + "\"\n";
  const Result<KeyFile> read = parse_key_file(
      head +
      "  # \xc3\xa9quipe\n[tenants]\na = { floor = 1024, concurrent = 1 }\n[[keys]]\nid = \"k1\"\ntenant = \"a\"\n" +
      hash + "created = 2026-11-23\nexpires = 2027-01-31\n");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->tenants.front().floor, 1024U);
  EXPECT_EQ(read->keys.front().expires, 1801353600);
}

TEST(KeyFile, RefusesWhatIsWrongAndSaysWhere) {
  const std::string secret = digest_text(random_secret());
  const std::string head = "version = 1\nsecret = \"" + secret + "\"\n";
  const std::string key = "[tenants.a]\n[[keys]]\nid = \"k1\"\ntenant = \"a\"\ncreated = 2026-11-23\n";
  const std::string hash = digest_text(random_secret());
  const std::string hashed = "hash = \"" + hash + "\"\n";
  const std::pair<std::string, const char*> wrong[] = {
      {"version = 1\n", "'secret' is missing"},
      {"", "version = 1"},
      {"version = 2\n", "version = 1"},
      {head + "secret = 5", "line 3"},
      {"\xef\xba\xbf" + head, "line 1 has a character other than ASCII"},  // undefined in toml++ 3.3
      {head + "[tenants.a] # \xc3\xa9\n", "line 3 has a character other than ASCII"},
      {head + "[tenants.a]\nflor = 1\n", "tenant 'a': 'flor' is not a field"},
      {head + "[tenants.a]\nid = \"a b\"\n", "tenant 'a' has the id 'a b'"},
      {head + "limits = 1\n", "'limits' is not a field"},
      {head + "[tenants.a]\nfloor = \"much\"\n", "tenant 'a': 'floor' must be a size"},
      {head + "[tenants.a]\nfloor = -1\n", "'floor' must be a size"},
      {head + "[tenants.a]\nfloor = \"2MiB\"\nceiling = \"1MiB\"\n",
       "ceiling of 1MiB, which is below its floor of 2MiB"},
      {head + "[tenants.a]\nconcurrent = 1.5\n", "'concurrent' must be a whole number"},
      {head + "[tenants.\"a b\"]\n", "'a b' is no name"},
      {head + "[tenants.\"\\u0007\"]\n", "'?' is no name"},
      {head + "tenants = 1\n", "'tenants' must be tables"},
      {head + "[keys]\n", "'keys' must be tables"},
      {head + "keys = [1]\n", "'keys' must be tables"},
      {head + "[[keys]]\nid = \"k1\"\n", "key 'k1': 'tenant' is missing"},
      {head + key, "key 'k1': 'hash' is missing"},
      {head + key + "hash = \"short\"\n", "key 'k1': 'hash' is damaged"},
      {head + key + "hash = 7\n", "'hash' must be a text"},
      {head + key + hashed + "expires = \"soon\"\n", "'expires' must be a date"},
      {head + key + hashed + "expires = 2027-01-31T00:00:00+02:00\n", "must be in UTC"},
      {head + key + hashed + "[[keys]]\nid = \"k1\"\ntenant = \"a\"\ncreated = 2026-11-23\n" + hashed,
       "two keys with the id 'k1'"},
      {head + "[[keys]]\nid = \"k1\"\ntenant = \"b\"\ncreated = 2026-11-23\n" + hashed, "tenant 'b', which"},
  };
  for (const auto& [text, problem] : wrong) {
    const Result<KeyFile> read = parse_key_file(text);
    ASSERT_FALSE(read.ok()) << text;
    const std::string& message = read.status().message();
    EXPECT_NE(message.find(problem), std::string::npos) << message << "\nfor\n" << text;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_EQ(message.find(secret), std::string::npos) << message;
    EXPECT_EQ(message.find(hash), std::string::npos) << message;
  }
}

TEST(KeyFile, EveryCutIsRefusedOrWhole) {
  const std::string text = key_file_text(sample());
  int refused = 0;
  for (std::size_t size = 0; size < text.size(); ++size)
    if (!parse_key_file(text.substr(0, size)).ok()) ++refused;
  EXPECT_GT(refused, static_cast<int>(text.size()) / 2);
}

TEST(KeyFile, NewFileIsForItsOwnerAlone) {
  const TestFolder folder;
  const std::string path = folder.file("keys.toml");
  const mode_t before = ::umask(0);
  const Status saved = save_key_file(path, sample());
  ::umask(before);
  ASSERT_TRUE(saved.ok()) << saved.message();
  struct stat st {};
  ASSERT_EQ(::stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600U);
  EXPECT_TRUE(load_key_file(path).ok());
}

TEST(KeyFile, EditKeepsThePermissions) {
  const TestFolder folder;
  const std::string path = folder.file("keys.toml");
  ASSERT_TRUE(save_key_file(path, sample()).ok());
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  ASSERT_TRUE(save_key_file(path, sample()).ok());
  struct stat st {};
  ASSERT_EQ(::stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0640U);
}

TEST(KeyFile, RefusesFilesThatOthersMayRead) {
  const TestFolder folder;
  const std::string path = folder.file("keys.toml");
  ASSERT_TRUE(save_key_file(path, sample()).ok());
  for (const auto& [mode, allowed] : {std::pair(0600, true),
                                      {0400, true},
                                      {0640, true},
                                      {0644, false},
                                      {0660, false},
                                      {0604, false},
                                      {0602, false},
                                      {0601, false}}) {
    ASSERT_EQ(::chmod(path.c_str(), static_cast<mode_t>(mode)), 0);
    const Result<KeyFile> read = load_key_file(path);
    EXPECT_EQ(read.ok(), allowed) << std::oct << mode;
    if (!read.ok()) {
      EXPECT_NE(read.status().message().find("chmod 600"), std::string::npos) << read.status().message();
    }
  }
}

TEST(KeyFile, NamesAMissingFile) {
  const Result<KeyFile> read = load_key_file("/nowhere/keys.toml");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().code(), StatusCode::kNotFound);
  EXPECT_NE(read.status().message().find("kvasir keys tenant"), std::string::npos);
}

TEST(KeyFile, SavesNothingThatItWouldNotRead) {
  const TestFolder folder;
  const std::string path = folder.file("keys.toml");
  const KeyFile good = sample();
  ASSERT_TRUE(save_key_file(path, good).ok());
  KeyFile bad = good;
  bad.keys.front().tenant = "nobody";
  EXPECT_FALSE(save_key_file(path, bad).ok());
  EXPECT_EQ(test::read_text(path), key_file_text(good));
}

TEST(KeyFile, TheLockExcludes) {
  const TestFolder folder;
  const std::string path = folder.file("keys.toml");
  ASSERT_TRUE(save_key_file(path, KeyFile{random_secret(), {}, {}}).ok());
  const auto add = [&](char first) {
    for (int i = 0; i < 20; ++i) {
      const Result<KeyFileLock> lock = KeyFileLock::take(path);
      ASSERT_TRUE(lock.ok());
      Result<KeyFile> file = load_key_file(path);
      ASSERT_TRUE(file.ok());
      Tenant& tenant = file->tenants.emplace_back();
      tenant.name = std::string(1, first) + std::to_string(i);
      ASSERT_TRUE(save_key_file(path, *file).ok());
    }
  };
  std::thread other([&] { add('a'); });
  add('b');
  other.join();
  EXPECT_EQ(load_key_file(path)->tenants.size(), 40U);
}

}  // namespace
}  // namespace kvasir::tenants
