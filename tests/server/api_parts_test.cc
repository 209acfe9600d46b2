// The text thread, and the files of sessions.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "server/sessions/session_store.h"
#include "server/threads/text_thread.h"

namespace kvasir::server {
namespace {

namespace fs = std::filesystem;

TEST(TextThreads, WorkInOrderAndWithinBounds) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> done;
  bool held = true;
  const auto post = [&](const std::function<void()>& function) {
    const std::lock_guard lock(mutex);
    function();
    changed.notify_all();
  };
  TextThread texts({post, 4, 100});
  std::atomic<bool> begun = false;
  ASSERT_TRUE(texts
                  .run(
                      1000,
                      [&] {
                        begun = true;
                        std::unique_lock lock(mutex);
                        changed.wait(lock, [&] { return !held; });
                      },
                      [&] { done.push_back(-1); })
                  .ok())
      << "a job is taken whatever its size while no other waits";
  while (!begun) std::this_thread::yield();
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(texts
                    .run(
                        30, [] {}, [&done, i] { done.push_back(i); })
                    .ok());
  EXPECT_EQ(texts
                .run(
                    30, [] {}, [] {})
                .code(),
            StatusCode::kResourceExhausted)
      << "too many bytes";
  ASSERT_TRUE(texts
                  .run(
                      1, [] {}, [&] { done.push_back(3); })
                  .ok());
  EXPECT_EQ(texts
                .run(
                    0, [] {}, [] {})
                .code(),
            StatusCode::kResourceExhausted)
      << "too many jobs";
  std::unique_lock lock(mutex);
  held = false;
  changed.notify_all();
  changed.wait(lock, [&] { return done.size() == 5; });
  EXPECT_EQ(done, (std::vector<int>{-1, 0, 1, 2, 3}));
}

class SessionStoreTest : public ::testing::Test {
 protected:
  SessionStoreTest() {
    root_ = ::testing::TempDir() + "kvasir-sessions-XXXXXX";
    if (::mkdtemp(root_.data()) == nullptr) std::abort();
  }
  ~SessionStoreTest() override { fs::remove_all(root_); }

  Status save(const SessionStore& store, const char* tenant, const char* id, std::size_t bytes) {
    const Result<std::string> place = store.place_to_write(tenant, id);
    if (!place.ok()) return place.status();
    std::ofstream(*place) << std::string(bytes, 'x');
    return store.commit(tenant, id).status();
  }

  std::string root_;
};

TEST_F(SessionStoreTest, KeepsTenantsApart) {
  const SessionStore store(root_, {});
  ASSERT_TRUE(store.prepare().ok());
  for (const char* tenant : {"", "a", "b", "../a", "a/../b"}) ASSERT_TRUE(save(store, tenant, "s", 10).ok()) << tenant;
  ASSERT_TRUE(save(store, "a", "r", 20).ok());
  ASSERT_EQ(store.list("a").size(), 2u);
  EXPECT_EQ(store.list("a")[0].id, "r");
  EXPECT_EQ(store.list("a")[0].bytes, 20u);
  EXPECT_EQ(store.list("b").size(), 1u);
  EXPECT_TRUE(store.list("nobody").empty());
  ASSERT_TRUE(store.remove("../a", "s").ok());
  EXPECT_EQ(store.list("a").size(), 2u);
  EXPECT_EQ(store.remove("../a", "s").code(), StatusCode::kNotFound);
  EXPECT_EQ(store.find("a", "none").status().code(), StatusCode::kNotFound);
  for (const auto& file : fs::recursive_directory_iterator(root_))
    EXPECT_TRUE(file.path().string().starts_with(root_ + "/")) << file.path();
}

TEST_F(SessionStoreTest, IsBoundedInCountAndBytes) {
  const SessionStore store(root_, {.count = 2, .bytes = 100});
  ASSERT_TRUE(save(store, "a", "one", 40).ok());
  ASSERT_TRUE(save(store, "a", "two", 40).ok());
  EXPECT_EQ(save(store, "a", "three", 1).code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(save(store, "b", "three", 90).ok()) << "each tenant has its own bounds";
  EXPECT_EQ(save(store, "a", "two", 61).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(store.find("a", "two")->bytes, 40u) << "what was there stays";
  EXPECT_TRUE(save(store, "a", "two", 60).ok()) << "its old bytes do not count";
  std::size_t files = 0;
  for (const auto& file : fs::recursive_directory_iterator(root_)) files += file.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 3u) << "nothing half written is left";
}

TEST_F(SessionStoreTest, ClearsWhatACrashLeft) {
  const SessionStore store(root_, {});
  ASSERT_TRUE(save(store, "a", "s", 5).ok());
  std::ofstream(*store.place_to_write("a", "s")) << "half";
  std::ofstream(*store.place_to_write("a", "s") + ".partial") << "half";
  ASSERT_TRUE(store.prepare().ok());
  EXPECT_FALSE(fs::exists(*store.place_to_write("a", "s")));
  EXPECT_FALSE(fs::exists(*store.place_to_write("a", "s") + ".partial"));
  EXPECT_EQ(store.find("a", "s")->bytes, 5u);
}

}  // namespace
}  // namespace kvasir::server
