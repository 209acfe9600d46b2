#include "tenants/usage_store.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/status.h"

namespace kvasir::tenants {
namespace {

constexpr int kSchema = 1;
constexpr int kApplication = 0x4b765573;  // "KvUs"
constexpr int kBusyMilliseconds = 250;
constexpr std::int64_t kHour = 3600;
constexpr std::int64_t kDay = 24 * kHour;
constexpr std::int64_t kHoursKept = 35 * kDay;
constexpr std::int64_t kDaysKept = 400 * kDay;

// Returns the figures' names, each between `before` and `after`, joined.
std::string columns(std::string_view before, std::string_view after, std::string_view between = ", ") {
  std::string text;
  for (const UsageField& field : kUsageFields)
    text += fmt::format("{}{}{}{}", text.empty() ? "" : between, before, field.name, after);
  return text;
}

std::string sum_on_conflict() {
  std::string text = " ON CONFLICT(start, seconds, tenant) DO UPDATE SET ";
  for (const UsageField& field : kUsageFields)
    text += fmt::format("{}{} = {} + excluded.{}", &field == kUsageFields.begin() ? "" : ", ", field.name, field.name,
                        field.name);
  return text;
}

Status database_error(sqlite3* database, int code, const std::string& path) {
  const std::string reason = database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code);
  const int system = database != nullptr ? sqlite3_system_errno(database) : 0;
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return data_loss(
          "usage database '{}' is damaged or is none ({}); move it away, and the server makes a new "
          "one",
          path, reason);
    case SQLITE_FULL: return exhausted("usage database '{}' cannot grow: {}; make room on its disk", path, reason);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return make_status(StatusCode::kIo, "usage database '{}' is locked by another program; end that program", path);
    default:
      if (system == ENOSPC || system == EDQUOT || system == EFBIG)
        return exhausted("usage database '{}' cannot grow: {}; make room on its disk", path, std::strerror(system));
      if (code == SQLITE_IOERR_WRITE)  // SQLite does not keep the reason
        return make_status(StatusCode::kIo,
                           "usage database '{}' cannot be written: {}; check its disk and limits on the size of files",
                           path, reason);
      return make_status(StatusCode::kIo, "usage database '{}' cannot be used: {}{}{}; check the file and its folder",
                         path, reason, system != 0 ? ": " : "", system != 0 ? std::strerror(system) : "");
  }
}

struct StatementEnd {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Statement = std::unique_ptr<sqlite3_stmt, StatementEnd>;

}  // namespace

Status check_usage_place(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode))
    return invalid_argument("'{}' is a folder; give a file for the usage database", path);
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (::stat(folder.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) return {};
  return invalid_argument("the usage database '{}' has no place: there is no folder '{}'; make it first", path, folder);
}

struct UsageStore::Database {
  sqlite3* handle = nullptr;
  std::string path;
  dev_t device = 0;
  ino_t inode = 0;

  ~Database() { sqlite3_close(handle); }

  Status error(int code) const { return database_error(handle, code, path); }

  Status run(const std::string& sql) const {
    const int code = sqlite3_exec(handle, sql.c_str(), nullptr, nullptr, nullptr);
    return code == SQLITE_OK ? Status() : error(sqlite3_extended_errcode(handle));
  }

  Result<Statement> prepare(const std::string& sql) const {
    sqlite3_stmt* statement = nullptr;
    const int code = sqlite3_prepare_v2(handle, sql.c_str(), -1, &statement, nullptr);
    if (code != SQLITE_OK) return error(code);
    return Statement(statement);
  }

  Result<std::int64_t> number(const std::string& sql) const {
    KVASIR_ASSIGN_OR_RETURN(const Statement statement, prepare(sql));
    const int code = sqlite3_step(statement.get());
    if (code != SQLITE_ROW) return error(code);
    return std::int64_t{sqlite3_column_int64(statement.get(), 0)};
  }

  // Runs `work` as a transaction, which an error rolls back.
  template <class Work>
  Status transact(const Work& work) const {
    KVASIR_RETURN_IF_ERROR(run("BEGIN IMMEDIATE"));
    Status status = work();
    if (status.ok()) status = run("COMMIT");
    if (!status.ok() && sqlite3_get_autocommit(handle) == 0)
      sqlite3_exec(handle, "ROLLBACK", nullptr, nullptr, nullptr);
    return status;
  }

  // Checks that the database is ours. Makes the tables of an empty one, if allowed.
  Status check_schema(bool make) const {
    KVASIR_ASSIGN_OR_RETURN(const std::int64_t application, number("PRAGMA application_id"));
    KVASIR_ASSIGN_OR_RETURN(const std::int64_t version, number("PRAGMA user_version"));
    KVASIR_ASSIGN_OR_RETURN(const std::int64_t tables, number("SELECT count(*) FROM sqlite_schema"));
    if (application == kApplication && version == kSchema) return {};
    if (application == kApplication)
      return unsupported("usage database '{}' has the form {} of another version of Kvasir; this one reads form {}",
                         path, version, kSchema);
    if (tables > 0 || application != 0 || !make)
      return invalid_argument("'{}' is no usage database of Kvasir; give another file", path);
    return transact([&]() -> Status {
      KVASIR_RETURN_IF_ERROR(
          run(fmt::format("CREATE TABLE usage(start INTEGER NOT NULL, seconds INTEGER NOT NULL, tenant TEXT NOT NULL, "
                          "{}, PRIMARY KEY(start, seconds, tenant)) WITHOUT ROWID",
                          columns("", " INTEGER NOT NULL DEFAULT 0"))));
      return run(fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", kApplication, kSchema));
    });
  }
};

UsageStore::UsageStore(std::unique_ptr<Database> database) : database_(std::move(database)) {}
UsageStore::~UsageStore() = default;

Result<std::unique_ptr<UsageStore>> UsageStore::open(const std::string& path, Access access) {
  const bool writes = access == Access::kWrite;
  struct stat st {};
  if (!writes && ::stat(path.c_str(), &st) != 0 && errno == ENOENT)
    return make_status(StatusCode::kNotFound, "there is no usage database '{}'; 'kvasir serve --usage-db' makes it",
                       path);
  auto database = std::make_unique<Database>();
  database->path = path;
  // SQLite would create it with the umask's permissions. SQLite's other files take over the database's.
  if (const int made = writes ? ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1; made >= 0)
    ::close(made);
  const int flags = writes ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY;
  if (const int code = sqlite3_open_v2(path.c_str(), &database->handle, flags | SQLITE_OPEN_NOMUTEX, nullptr);
      code != SQLITE_OK)
    return database->error(code);
  sqlite3_extended_result_codes(database->handle, 1);
  sqlite3_busy_timeout(database->handle, kBusyMilliseconds);
  if (writes) {
    KVASIR_RETURN_IF_ERROR(
        database->run("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                      "PRAGMA journal_size_limit = 4194304"));
  }
  KVASIR_RETURN_IF_ERROR(database->check_schema(writes));
  if (::stat(path.c_str(), &st) == 0) {
    database->device = st.st_dev;
    database->inode = st.st_ino;
  }
  return std::unique_ptr<UsageStore>(new UsageStore(std::move(database)));
}

Status UsageStore::add(const UsageBatch& batch) {
  if (batch.empty()) return {};
  return database_->transact([&]() -> Status {
    KVASIR_ASSIGN_OR_RETURN(
        const Statement insert,
        database_->prepare(fmt::format("INSERT INTO usage(start, seconds, tenant, {}) VALUES (?, {}, ?, {}){}",
                                       columns("", ""), kHour, columns(":", ""), sum_on_conflict())));
    for (const auto& [key, figures] : batch) {
      sqlite3_bind_int64(insert.get(), 1, key.hour);
      sqlite3_bind_text(insert.get(), 2, key.tenant.data(), static_cast<int>(key.tenant.size()), SQLITE_STATIC);
      int at = 3;
      for (const UsageField& field : kUsageFields) sqlite3_bind_int64(insert.get(), at++, figures.*field.value);
      if (sqlite3_step(insert.get()) != SQLITE_DONE)
        return database_->error(sqlite3_extended_errcode(database_->handle));
      sqlite3_reset(insert.get());
    }
    return {};
  });
}

Result<std::vector<UsageRow>> UsageStore::read(const UsageQuery& query) const {
  KVASIR_ASSIGN_OR_RETURN(const Statement select,
                          database_->prepare(fmt::format(
                              "SELECT * FROM (SELECT start, seconds, tenant, {} FROM usage WHERE start + seconds "
                              "> ? AND (? = 0 OR tenant = ?) ORDER BY start DESC, tenant DESC LIMIT ?) ORDER BY "
                              "start, tenant",
                              columns("", ""))));
  sqlite3_bind_int64(select.get(), 1, query.since);
  sqlite3_bind_int64(select.get(), 2, query.one_tenant ? 1 : 0);
  sqlite3_bind_text(select.get(), 3, query.tenant.data(), static_cast<int>(query.tenant.size()), SQLITE_STATIC);
  sqlite3_bind_int64(select.get(), 4, static_cast<sqlite3_int64>(query.limit));
  std::vector<UsageRow> rows;
  int code = SQLITE_ROW;
  while ((code = sqlite3_step(select.get())) == SQLITE_ROW) {
    UsageRow& row = rows.emplace_back();
    row.start = sqlite3_column_int64(select.get(), 0);
    row.seconds = sqlite3_column_int64(select.get(), 1);
    if (const unsigned char* name = sqlite3_column_text(select.get(), 2); name != nullptr)
      row.tenant = reinterpret_cast<const char*>(name);
    int at = 3;
    for (const UsageField& field : kUsageFields) row.figures.*field.value = sqlite3_column_int64(select.get(), at++);
  }
  if (code != SQLITE_DONE) return database_->error(code);
  return rows;
}

Status UsageStore::roll_up(std::int64_t now) {
  // Adds up only whole days, so that no day has two rows.
  const std::int64_t before = (now - kHoursKept) / kDay * kDay;
  const std::int64_t oldest = (now - kDaysKept) / kDay * kDay;
  return database_->transact([&]() -> Status {
    KVASIR_RETURN_IF_ERROR(database_->run(fmt::format(
        "INSERT INTO usage(start, seconds, tenant, {}) SELECT start - start % {}, {}, tenant, {} FROM usage "
        "WHERE seconds = {} AND start < {} GROUP BY start - start % {}, tenant{}",
        columns("", ""), kDay, kDay, columns("sum(", ")"), kHour, before, kDay, sum_on_conflict())));
    KVASIR_RETURN_IF_ERROR(
        database_->run(fmt::format("DELETE FROM usage WHERE seconds = {} AND start < {}", kHour, before)));
    return database_->run(fmt::format("DELETE FROM usage WHERE start < {}", oldest));
  });
}

bool UsageStore::is_replaced() const {
  struct stat st {};
  return ::stat(database_->path.c_str(), &st) != 0 || st.st_dev != database_->device || st.st_ino != database_->inode;
}

}  // namespace kvasir::tenants
