#include "hub/cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

const std::string kCommit(40, 'c');
const std::string kHash(64, 'd');
const std::string kRepo = "user/repo--x";

class HubCaches : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(root_); }
  void TearDown() override { fs::remove_all(root_); }

  void add(const std::string& commit, const std::string& path, const std::string& hash, std::size_t bytes) {
    ASSERT_TRUE(cache_.prepare(kRepo).ok());
    std::ofstream(cache_.partial(kRepo, hash)) << std::string(bytes, 'x');
    ASSERT_TRUE(cache_.commit_blob(kRepo, hash).ok());
    ASSERT_TRUE(cache_.link(kRepo, commit, path, hash).ok());
  }

  fs::path root_ = fs::path(::testing::TempDir()) / ("kvasir-hub-" + std::to_string(::getpid()));
  HubCache cache_{root_.string()};
};

TEST_F(HubCaches, HaveTheLayoutOfTheHuggingFaceTools) {
  add(kCommit, "a/b/m.gguf", kHash, 5);
  const fs::path repo = root_ / "models--user--repo--x";
  EXPECT_EQ(fs::read_symlink(repo / "snapshots" / kCommit / "a/b/m.gguf"), "../../../../blobs/" + kHash);
  EXPECT_EQ(fs::file_size(repo / "snapshots" / kCommit / "a/b/m.gguf"), 5u);
  ASSERT_TRUE(cache_.set_commit(kRepo, "refs/pr/1", kCommit).ok());
  EXPECT_EQ(fs::file_size(repo / "refs/refs/pr/1"), 40u);
  EXPECT_EQ(cache_.commit_of(kRepo, "refs/pr/1"), kCommit);
  EXPECT_EQ(cache_.commit_of(kRepo, kCommit), kCommit);
  EXPECT_EQ(cache_.commit_of(kRepo, "main"), std::nullopt);
}

TEST_F(HubCaches, ListWhatIsThere) {
  add(kCommit, "m.gguf", kHash, 5);
  add(kCommit, "README.md", std::string(40, 'e'), 5);
  ASSERT_TRUE(cache_.link(kRepo, kCommit, "gone.gguf", std::string(64, 'f')).ok());
  const std::vector<CachedSnapshot> found = cache_.snapshots();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].repo, kRepo);
  EXPECT_EQ(found[0].revision, kCommit);
  EXPECT_EQ(found[0].paths, std::vector<std::string>{"m.gguf"});
  ASSERT_TRUE(cache_.set_commit(kRepo, "v1", kCommit).ok());
  ASSERT_TRUE(cache_.set_commit(kRepo, "main", kCommit).ok());
  EXPECT_EQ(cache_.snapshots()[0].revision, "main");
}

TEST_F(HubCaches, IgnoreForgedCommits) {
  add(kCommit, "m.gguf", kHash, 5);
  for (const std::string forged : {"../../..", "", "main"}) {
    fs::create_directories(root_ / "models--user--repo--x/refs");
    std::ofstream(root_ / "models--user--repo--x/refs/main", std::ios::trunc) << forged;
    EXPECT_EQ(cache_.commit_of(kRepo, "main"), std::nullopt) << forged;
  }
}

TEST_F(HubCaches, LockExcludesOthers) {
  ASSERT_TRUE(cache_.prepare(kRepo).ok());
  const auto gives_up = [] { return false; };
  {
    const Result<ContentLock> lock = cache_.lock(kRepo, kHash, gives_up);
    ASSERT_TRUE(lock.ok());
    EXPECT_EQ(cache_.lock(kRepo, kHash, gives_up).status().code(), StatusCode::kCancelled);
  }
  EXPECT_TRUE(cache_.lock(kRepo, kHash, gives_up).ok());
}

TEST_F(HubCaches, RemoveOnlyWhatNothingRefersTo) {
  const std::string other(40, 'e');
  add(kCommit, "m.gguf", kHash, 5);
  add(kCommit, "n.gguf", std::string(64, '1'), 7);
  ASSERT_TRUE(cache_.link(kRepo, other, "m.gguf", kHash).ok());
  EXPECT_EQ(*cache_.remove(kRepo, kCommit, {"m.gguf"}), 0u);
  EXPECT_TRUE(fs::exists(cache_.blob(kRepo, kHash)));
  {
    const Result<ContentLock> lock = cache_.lock(kRepo, kHash, [] { return false; });
    ASSERT_TRUE(lock.ok());
    EXPECT_EQ(cache_.remove(kRepo, other, {"m.gguf"}).status().message(),
              "user/repo--x is being fetched by another process; nothing is removed");
  }
  EXPECT_EQ(*cache_.remove(kRepo, other, {"m.gguf"}), 5u);
  EXPECT_FALSE(fs::exists(cache_.blob(kRepo, kHash)));
  EXPECT_EQ(*cache_.remove(kRepo, kCommit, {"n.gguf"}), 7u);
  EXPECT_FALSE(fs::exists(root_ / "models--user--repo--x"));
}

TEST_F(HubCaches, RemoveNothingOutside) {
  // A link of a snapshot that leads out of the cache: the link goes, and not what it leads to.
  const fs::path outside = root_ / "outside.gguf";
  std::ofstream(outside) << "mine";
  const fs::path snapshot = cache_.snapshot(kRepo, kCommit);
  fs::create_directories(snapshot);
  fs::create_symlink(outside, snapshot / "m.gguf");
  EXPECT_EQ(*cache_.remove(kRepo, kCommit, {"m.gguf"}), 0u);
  EXPECT_TRUE(fs::exists(outside));
  EXPECT_FALSE(fs::exists(snapshot));
}

}  // namespace
}  // namespace kvasir::hub
