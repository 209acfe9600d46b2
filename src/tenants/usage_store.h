// The usage database: SQLite, with one row per tenant and hour. Hours older than 35 days become days, and days older
// than 400 are dropped, so the number of tenants bounds its size.
//
// Every call is one transaction, which is durable on return (write-ahead log, synced).
// Thread-safety: one thread at a time. Several processes may open one database; a writer waits for another for up to a
// quarter of a second.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvasir/status.h"
#include "tenants/usage.h"

namespace kvasir::tenants {

// Refuses a path where no database can ever be: a folder, or a name in a folder that does not exist.
Status check_usage_place(const std::string& path);

class UsageStore {
 public:
  enum class Access { kRead, kWrite };

  // Opens a database; with kWrite, makes one if there is none. Errors: kNotFound (kRead), kDataLoss (damaged, or not an
  // SQLite database), kInvalidArgument (another program's database), kUnsupported (a newer Kvasir's),
  // kResourceExhausted (a full disk), kIo (locked, not permitted). Each names the file and says how to mend it.
  static Result<std::unique_ptr<UsageStore>> open(const std::string& path, Access access);
  ~UsageStore();
  UsageStore(const UsageStore&) = delete;
  UsageStore& operator=(const UsageStore&) = delete;

  // Adds figures to their rows; none after an error. Errors: as open.
  Status add(const UsageBatch& batch);

  // Returns rows in order of time and tenant. Errors: as open.
  Result<std::vector<UsageRow>> read(const UsageQuery& query) const;

  // Adds up by day the hours that ended more than 35 days before `now`, and drops rows older than 400 days. Errors: as
  // open.
  Status roll_up(std::int64_t now);

  // Returns whether the path now leads to another file or to none, so that figures added here would be lost.
  bool is_replaced() const;

 private:
  struct Database;
  explicit UsageStore(std::unique_ptr<Database> database);
  std::unique_ptr<Database> database_;
};

}  // namespace kvasir::tenants
