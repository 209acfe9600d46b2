#include "tenants/usage_store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/file_size_limit.h"
#include "tenants/test_folder.h"

namespace kvasir::tenants {
namespace {

using test::TestFolder;

constexpr std::int64_t kHour = 3600;
constexpr std::int64_t kDay = 86400;
constexpr std::int64_t kNow = 20000 * kDay + 5 * kHour;

std::unique_ptr<UsageStore> open_store(const std::string& path) {
  Result<std::unique_ptr<UsageStore>> store = UsageStore::open(path, UsageStore::Access::kWrite);
  EXPECT_TRUE(store.ok()) << store.status().message();
  return store.ok() ? std::move(*store) : nullptr;
}

UsageFigures figures(std::int64_t n) {
  UsageFigures all;
  for (const UsageField& field : kUsageFields) all.*field.value = n++;
  return all;
}

UsageFigures total(const std::vector<UsageRow>& rows) {
  UsageFigures all;
  for (const UsageRow& row : rows) all.add(row.figures);
  return all;
}

// Runs SQL on a database beside the store.
void run_sql(const std::string& path, const std::string& sql) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
  sqlite3_close(database);
}

TEST(UsageStore, AddsUpAndSurvives) {
  const TestFolder folder;
  const std::string path = folder.file("usage.db");
  {
    const auto store = open_store(path);
    ASSERT_TRUE(store->add({{{kHour, "a"}, figures(1)}, {{kHour, "b"}, figures(100)}}).ok());
    ASSERT_TRUE(store->add({{{kHour, "a"}, figures(10)}, {{2 * kHour, "a"}, figures(1000)}}).ok());
    ASSERT_TRUE(store->add({}).ok());
  }
  const auto rows = *(*UsageStore::open(path, UsageStore::Access::kRead))->read({});
  ASSERT_EQ(rows.size(), 3U);
  UsageFigures sum = figures(1);
  sum.add(figures(10));
  EXPECT_EQ(rows[0].tenant, "a");
  EXPECT_EQ(rows[0].figures, sum);
  EXPECT_EQ(rows[1].tenant, "b");
  EXPECT_EQ(rows[1].figures, figures(100));
  EXPECT_EQ(rows[2].start, 2 * kHour);
  EXPECT_EQ(rows[2].seconds, kHour);
}

TEST(UsageStore, NewDatabaseIsForItsOwnerAlone) {
  const TestFolder folder;
  const std::string path = folder.file("usage.db");
  const auto mode_of = [](const std::string& file) {
    struct stat st {};
    EXPECT_EQ(::stat(file.c_str(), &st), 0) << file;
    return st.st_mode & 0777;
  };
  const mode_t before = ::umask(0);
  {
    const auto store = open_store(path);
    EXPECT_TRUE(store->add({{{kHour, "a"}, figures(1)}}).ok());
    ::umask(before);
    for (const char* suffix : {"", "-wal", "-shm"}) EXPECT_EQ(mode_of(path + suffix), 0600U) << suffix;
  }
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  EXPECT_TRUE(open_store(path)->add({{{kHour, "a"}, figures(1)}}).ok());
  EXPECT_EQ(mode_of(path), 0640U);
}

TEST(UsageStore, ReadsByTimeAndTenant) {
  const TestFolder folder;
  const auto store = open_store(folder.file("usage.db"));
  UsageBatch batch;
  for (int hour = 0; hour < 10; ++hour)
    for (const char* tenant : {"", "a", "it's; DROP TABLE usage"}) batch[{hour * kHour, tenant}] = figures(1);
  ASSERT_TRUE(store->add(batch).ok());
  EXPECT_EQ(store->read({})->size(), 30U);
  EXPECT_EQ(store->read({.since = 5 * kHour})->size(), 15U);
  EXPECT_EQ(store->read({.since = 5 * kHour + 1, .one_tenant = true, .tenant = ""})->size(), 5U);
  EXPECT_EQ(store->read({.one_tenant = true, .tenant = "it's; DROP TABLE usage"})->size(), 10U);
  EXPECT_EQ(store->read({.one_tenant = true, .tenant = "none"})->size(), 0U);
  const auto newest = *store->read({.limit = 2});
  ASSERT_EQ(newest.size(), 2U);
  EXPECT_EQ(newest[1].start, 9 * kHour);
}

TEST(UsageStore, OldHoursBecomeDaysAndOldDaysGo) {
  const TestFolder folder;
  const auto store = open_store(folder.file("usage.db"));
  UsageBatch batch;
  for (std::int64_t hour = kNow - 410 * kDay; hour < kNow; hour += kHour)
    batch[{hour - hour % kHour, "a"}] = figures(1);
  ASSERT_TRUE(store->add(batch).ok());
  const UsageFigures recent_before = total(*store->read({.since = kNow - 399 * kDay}));
  ASSERT_TRUE(store->roll_up(kNow).ok());
  const auto rows = *store->read({});
  EXPECT_LT(rows.size(), 36U * 24 + 402);
  EXPECT_GT(rows.size(), 35U * 24 + 360);
  EXPECT_EQ(rows.front().start, (kNow - 400 * kDay) / kDay * kDay);
  EXPECT_EQ(rows.front().seconds, kDay);
  EXPECT_EQ(rows.front().figures.requests, 24);
  EXPECT_EQ(rows.back().seconds, kHour);
  EXPECT_EQ(total(*store->read({.since = (kNow - 399 * kDay) / kDay * kDay})).requests,
            recent_before.requests + (kNow - 399 * kDay) % kDay / kHour);
  ASSERT_TRUE(store->roll_up(kNow).ok());  // once more changes nothing
  EXPECT_EQ(store->read({})->size(), rows.size());
  // An hour that comes late joins its day.
  ASSERT_TRUE(store->add({{{rows.front().start + kHour, "a"}, figures(1)}}).ok());
  ASSERT_TRUE(store->roll_up(kNow).ok());
  EXPECT_EQ(store->read({})->front().figures.requests, 25);
}

TEST(UsageStore, ADamagedFileIsOneClearLine) {
  const TestFolder folder;
  const std::string path = folder.file("usage.db");
  test::write_text(path, std::string(8192, 'x'));
  for (const auto access : {UsageStore::Access::kRead, UsageStore::Access::kWrite}) {
    const auto store = UsageStore::open(path, access);
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().code(), StatusCode::kDataLoss);
    EXPECT_NE(store.status().message().find(path), std::string::npos);
    EXPECT_NE(store.status().message().find("move it away"), std::string::npos);
  }
  EXPECT_EQ(test::read_text(path), std::string(8192, 'x'));
}

TEST(UsageStore, DamageInsideIsAnErrorNotACrash) {
  const TestFolder folder;
  const std::string path = folder.file("usage.db");
  {
    const auto store = open_store(path);
    UsageBatch batch;
    for (int hour = 0; hour < 5000; ++hour) batch[{hour * kHour, "tenant"}] = figures(hour);
    ASSERT_TRUE(store->add(batch).ok());
  }
  std::string bytes = test::read_text(path);
  ASSERT_GT(bytes.size(), 100000U);
  for (std::size_t i = 4096; i < bytes.size(); i += 3) bytes[i] = static_cast<char>(bytes[i] ^ 0x5a);
  test::write_text(path, bytes);
  const auto store = UsageStore::open(path, UsageStore::Access::kWrite);
  ASSERT_TRUE(store.ok());  // the first page is whole
  EXPECT_EQ((*store)->read({}).status().code(), StatusCode::kDataLoss);
  EXPECT_FALSE((*store)->add({{{kHour, "tenant"}, figures(1)}}).ok());
}

TEST(UsageStore, KeepsOutOfOtherDatabasesAndNewerForms) {
  const TestFolder folder;
  const std::string other = folder.file("other.db"), newer = folder.file("newer.db");
  run_sql(other, "CREATE TABLE usage(x)");
  Result<std::unique_ptr<UsageStore>> store = UsageStore::open(other, UsageStore::Access::kWrite);
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::kInvalidArgument);
  static_cast<void>(open_store(newer));
  run_sql(newer, "PRAGMA user_version = 2");
  store = UsageStore::open(newer, UsageStore::Access::kWrite);
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::kUnsupported);
  store = UsageStore::open(folder.file("none.db"), UsageStore::Access::kRead);
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(folder.file("none.db")));
}

TEST(UsageStore, AFolderThatCannotBeWrittenIsOneClearLine) {
  // A folder that does not exist, since root may write to any that does.
  const auto store = UsageStore::open("/nowhere/usage.db", UsageStore::Access::kWrite);
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.status().message().find("/nowhere/usage.db"), std::string::npos);
  EXPECT_EQ(store.status().message().find('\n'), std::string::npos);
}

TEST(UsageStore, AFullDiskTakesAllOrNothing) {
  const TestFolder folder;
  const std::string path = folder.file("usage.db");
  const auto store = open_store(path);
  ASSERT_TRUE(store->add({{{kHour, "a"}, figures(1)}}).ok());
  UsageBatch batch;
  for (int hour = 0; hour < 5000; ++hour) batch[{hour * kHour, "b"}] = figures(hour);
  {
    const test::FileSizeLimit full(64 << 10);
    const Status status = store->add(batch);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find("cannot be written"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
  }
  EXPECT_EQ(store->read({})->size(), 1U);
  ASSERT_TRUE(store->add(batch).ok());
  EXPECT_EQ(store->read({})->size(), 5001U);
}

TEST(UsageStore, AFullDiskAtTheStartIsOneClearLine) {
  const TestFolder folder;
  const test::FileSizeLimit full(100);
  const auto store = UsageStore::open(folder.file("usage.db"), UsageStore::Access::kWrite);
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().code(), StatusCode::kResourceExhausted) << store.status().message();
}

TEST(UsageStore, ALockIsWaitedForAndThenTold) {
  const TestFolder folder;
  const std::string path = folder.file("usage.db");
  const auto store = open_store(path);
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  const Status status = store->add({{{kHour, "a"}, figures(1)}});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("is locked by another program"), std::string::npos) << status.message();
  sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr);
  sqlite3_close(other);
  EXPECT_TRUE(store->add({{{kHour, "a"}, figures(1)}}).ok());
}

TEST(UsageStore, WhatWasAddedSurvivesSigkill) {
  const TestFolder folder;
  const std::string path = folder.file("usage.db");
  const pid_t child = ::fork();
  if (child == 0) {
    const auto store = UsageStore::open(path, UsageStore::Access::kWrite);
    if (!store.ok() || !(*store)->add({{{kHour, "a"}, figures(7)}}).ok()) ::_exit(1);
    ::kill(::getpid(), SIGKILL);
  }
  int ended = 0;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  ASSERT_TRUE(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
  const auto rows = *open_store(path)->read({});
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].figures, figures(7));
}

TEST(UsageStore, KnowsWhenItsFileIsReplaced) {
  const TestFolder folder;
  const std::string path = folder.file("usage.db");
  const auto store = open_store(path);
  EXPECT_FALSE(store->is_replaced());
  std::filesystem::rename(path, folder.file("moved.db"));
  EXPECT_TRUE(store->is_replaced());
  test::write_text(path, "");
  EXPECT_TRUE(store->is_replaced());
}

}  // namespace
}  // namespace kvasir::tenants
