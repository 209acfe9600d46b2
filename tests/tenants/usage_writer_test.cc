#include "tenants/usage_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "tenants/test_folder.h"

namespace kvasir::tenants {
namespace {

using test::TestFolder;

constexpr std::int64_t kHour = 3600;

class UsageWriterTest : public ::testing::Test {
 protected:
  void start(std::chrono::milliseconds period = std::chrono::milliseconds(20), std::size_t pending = 20000) {
    UsageWriter::Options options;
    options.path = path_;
    options.period = period;
    options.pending = pending;
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_.push_back(line);
    };
    options.now = [this] { return now_.load(); };
    writer_.emplace(std::move(options));
  }

  Result<std::vector<UsageRow>> ask(UsageQuery query = {}) {
    std::promise<Result<std::vector<UsageRow>>> answer;
    auto future = answer.get_future();
    const Status asked =
        writer_->ask(std::move(query), [&](const Result<std::vector<UsageRow>>& rows) { answer.set_value(rows); });
    EXPECT_TRUE(asked.ok());
    return future.get();
  }

  std::vector<std::string> log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  // Waits until the log has so many lines.
  std::vector<std::string> wait_for_log(std::size_t lines) {
    for (int i = 0; i < 3000 && log().size() < lines; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return log();
  }

  static UsageFigures one_request() { return {.requests = 1, .prompt_tokens = 10, .generated_tokens = 5}; }

  TestFolder folder_;
  std::string path_ = folder_.file("usage.db");
  std::atomic<std::int64_t> now_{480000 * kHour + 60};
  std::mutex mutex_;
  std::vector<std::string> log_;
  std::optional<UsageWriter> writer_;
};

TEST_F(UsageWriterTest, AnswersWithAllThatWasAddedBefore) {
  start(std::chrono::minutes(10));  // so that it is the question that makes it write
  for (int i = 0; i < 100; ++i) writer_->add(i % 2 == 0 ? "a" : "b", one_request());
  now_ += kHour;
  writer_->add("a", one_request());
  const auto rows = ask();
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  ASSERT_EQ(rows->size(), 3U);
  EXPECT_EQ((*rows)[0].figures.requests, 50);
  EXPECT_EQ((*rows)[0].figures.prompt_tokens, 500);
  EXPECT_EQ((*rows)[0].start, 480000 * kHour);
  EXPECT_EQ((*rows)[2].start, 480001 * kHour);
  EXPECT_TRUE(log().empty());
}

TEST_F(UsageWriterTest, CommitsWithoutBeingAsked) {
  start();
  writer_->add("a", one_request());
  for (int i = 0; i < 3000; ++i) {
    if (const auto store = UsageStore::open(path_, UsageStore::Access::kRead); store.ok())
      if (const auto rows = (*store)->read({}); rows.ok() && !rows->empty()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL() << "nothing was written";
}

TEST_F(UsageWriterTest, WritesWhatIsLeftAtItsEnd) {
  start(std::chrono::minutes(10));
  static_cast<void>(ask());
  writer_->add("a", one_request());
  writer_.reset();
  EXPECT_EQ((*UsageStore::open(path_, UsageStore::Access::kRead))->read({})->size(), 1U);
}

TEST_F(UsageWriterTest, ManyThreadsLoseNothing) {
  start(std::chrono::milliseconds(1));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) writer_->add("a", one_request());
    });
  for (std::thread& thread : threads) thread.join();
  const auto rows = ask();
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->front().figures.requests, 8000);
}

TEST_F(UsageWriterTest, ADamagedFileIsToldOnceAndLosesNothing) {
  test::write_text(path_, std::string(8192, 'x'));
  start();
  writer_->add("a", one_request());
  std::vector<std::string> lines = wait_for_log(1);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(lines[0].starts_with("usage is not written; the server goes on, and tries again: ")) << lines[0];
  EXPECT_FALSE(ask().ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(log().size(), 1U);
  // What the line asks for mends it.
  std::filesystem::rename(path_, folder_.file("damaged.db"));
  lines = wait_for_log(2);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1], "usage is written again");
  EXPECT_EQ(ask()->front().figures, one_request());
}

TEST_F(UsageWriterTest, AMissingFolderMayComeLater) {
  path_ = folder_.file("later/usage.db");
  start();
  writer_->add("a", one_request());
  ASSERT_EQ(wait_for_log(1).size(), 1U);
  std::filesystem::create_directory(folder_.file("later"));
  ASSERT_EQ(wait_for_log(2).size(), 2U);
  EXPECT_EQ(ask()->front().figures, one_request());
}

TEST_F(UsageWriterTest, AFileThatIsRemovedIsMadeAnew) {
  start();
  writer_->add("a", one_request());
  ASSERT_EQ(ask()->size(), 1U);
  for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path_ + suffix);
  writer_->add("b", one_request());
  const auto rows = ask();
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  ASSERT_EQ(rows->size(), 1U);
  EXPECT_EQ(rows->front().tenant, "b");
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(UsageWriterTest, MemoryIsBoundedWhileNothingCanBeWritten) {
  path_ = "/nowhere/usage.db";
  start(std::chrono::milliseconds(5), 100);
  for (int i = 0; i < 1000; ++i) {
    now_ += kHour;
    writer_->add("a", one_request());
  }
  const std::vector<std::string> lines = wait_for_log(2);
  EXPECT_TRUE(std::ranges::any_of(lines, [](const std::string& l) { return l.find("dropped") != std::string::npos; }));
  writer_.reset();
  EXPECT_EQ(log().back(), "the usage of 100 requests is lost: it could not be written");
}

TEST_F(UsageWriterTest, TooManyQuestionsAreRefused) {
  UsageWriter::Options options;
  options.path = path_;
  options.questions = 1;
  std::promise<void> go;
  std::promise<void> waits;
  UsageWriter writer(std::move(options));  // uses them to its end
  ASSERT_TRUE(writer
                  .ask({},
                       [&](const auto&) {
                         waits.set_value();
                         go.get_future().wait();
                       })
                  .ok());
  waits.get_future().wait();
  EXPECT_TRUE(writer.ask({}, [](const auto&) {}).ok());
  EXPECT_EQ(writer.ask({}, [](const auto&) {}).code(), StatusCode::kResourceExhausted);
  go.set_value();
}

}  // namespace
}  // namespace kvasir::tenants
