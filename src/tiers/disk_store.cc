#include "tiers/disk_store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvasir {
namespace {

constexpr int kSchema = 1;
constexpr int kApplication = 0x4b765066;  // "KvPf"
constexpr std::string_view kEnding = ".part";

// Returns a key's form in the catalogue: lineage, salt, text.
std::string key_text(const BlobKey& key) {
  return key.lineage.hex() + key.salt.hex() + key.text.hex();
}

std::string file_name(const Hash128& text) {
  return text.hex() + std::string(kEnding);
}

bool is_file_name(std::string_view name) {
  return name.size() == 32 + kEnding.size() && name.ends_with(kEnding) &&
         name.find_first_not_of("0123456789abcdef") == 32;
}

std::optional<Hash128> hash_from(std::string_view hex) {
  Hash128 hash;
  for (int i = 0; i < 32; ++i) {
    const char digit = hex[static_cast<std::size_t>(i)];
    const int value = digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
    if (value < 0) return {};
    std::uint64_t& word = i < 16 ? hash.high : hash.low;
    word = word << 4 | static_cast<std::uint64_t>(value);
  }
  return hash.hex() == hex ? std::optional(hash) : std::nullopt;
}

// The rows on disk.
class Catalogue {
 public:
  struct Row {
    BlobKey key;
    std::uint64_t bytes = 0;
    std::int64_t used = 0;
  };

  Catalogue() = default;
  Catalogue(const Catalogue&) = delete;
  Catalogue& operator=(const Catalogue&) = delete;
  ~Catalogue() { close(); }

  // Errors: kDataLoss for a damaged file or another version, kInvalidArgument for another program's file.
  Status open(const std::string& path) {
    // SQLite gives its other files the mode of this one.
    if (const int made = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600); made >= 0) ::close(made);
    if (sqlite3_open_v2(path.c_str(), &handle_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        nullptr) != SQLITE_OK)
      return error();
    std::int64_t application = 0, version = 0, tables = 0;
    KVASIR_RETURN_IF_ERROR(number("PRAGMA application_id", &application));
    KVASIR_RETURN_IF_ERROR(number("PRAGMA user_version", &version));
    KVASIR_RETURN_IF_ERROR(number("SELECT count(*) FROM sqlite_schema", &tables));
    if (tables > 0 && application != kApplication)
      return invalid_argument("'{}' is a database of another program; move it, or give another folder", path)
          .about({"prefix_dir"});
    KVASIR_RETURN_IF_ERROR(run("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"));
    if (tables == 0) {
      KVASIR_RETURN_IF_ERROR(
          run("BEGIN; CREATE TABLE blobs(key TEXT PRIMARY KEY, place INTEGER NOT NULL, bytes INTEGER "
              "NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID; PRAGMA application_id=" +
              std::to_string(kApplication) + "; PRAGMA user_version=" + std::to_string(kSchema) + "; COMMIT"));
    } else if (version != kSchema) {
      return data_loss("it is of another version");
    }
    return {};
  }

  void close() {
    for (sqlite3_stmt** statement : {&put_, &remove_}) sqlite3_finalize(std::exchange(*statement, nullptr));
    sqlite3_close(std::exchange(handle_, nullptr));
  }

  Result<std::vector<Row>> rows() {
    std::vector<Row> rows;
    sqlite3_stmt* statement = nullptr;
    int code = sqlite3_prepare_v2(handle_, "SELECT key, place, bytes, used FROM blobs", -1, &statement, nullptr);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
      if ((code = sqlite3_step(statement)) != SQLITE_ROW) break;
      const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
      const std::string_view key(text != nullptr ? text : "");
      if (key.size() != 96) continue;
      const auto lineage = hash_from(key.substr(0, 32)), salt = hash_from(key.substr(32, 32)),
                 name = hash_from(key.substr(64));
      const std::int64_t place = sqlite3_column_int64(statement, 1), bytes = sqlite3_column_int64(statement, 2);
      if (!lineage || !salt || !name || bytes <= 0 || place < 0) continue;
      rows.push_back({{*lineage, *salt, *name, static_cast<std::uint32_t>(place)},
                      static_cast<std::uint64_t>(bytes),
                      sqlite3_column_int64(statement, 3)});
    }
    sqlite3_finalize(statement);
    if (code != SQLITE_DONE) return error();
    return rows;
  }

  Status put(const Row& row) {
    if (put_ == nullptr)
      KVASIR_RETURN_IF_ERROR(
          prepare("INSERT OR REPLACE INTO blobs(key, place, bytes, used) VALUES(?, ?, ?, ?)", &put_));
    const std::string key = key_text(row.key);
    sqlite3_bind_text(put_, 1, key.data(), static_cast<int>(key.size()), SQLITE_TRANSIENT);
    sqlite3_bind_int64(put_, 2, row.key.order);
    sqlite3_bind_int64(put_, 3, static_cast<std::int64_t>(row.bytes));
    sqlite3_bind_int64(put_, 4, row.used);
    return step(put_);
  }

  Status remove(const BlobKey& blob) {
    if (remove_ == nullptr) KVASIR_RETURN_IF_ERROR(prepare("DELETE FROM blobs WHERE key = ?", &remove_));
    const std::string key = key_text(blob);
    sqlite3_bind_text(remove_, 1, key.data(), static_cast<int>(key.size()), SQLITE_TRANSIENT);
    return step(remove_);
  }

  Status run(const std::string& sql) {
    return sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK ? Status() : error();
  }

 private:
  Status error() const {
    const int code = sqlite3_errcode(handle_);
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) return data_loss("{}", sqlite3_errmsg(handle_));
    const int system = sqlite3_system_errno(handle_);
    if (code == SQLITE_FULL || system == ENOSPC || system == EDQUOT)
      return exhausted("the catalogue of prefixes cannot grow: {}; make room on its disk", sqlite3_errmsg(handle_));
    return make_status(StatusCode::kIo, "the catalogue of prefixes cannot be used: {}", sqlite3_errmsg(handle_));
  }
  Status prepare(const char* sql, sqlite3_stmt** statement) {
    return sqlite3_prepare_v2(handle_, sql, -1, statement, nullptr) == SQLITE_OK ? Status() : error();
  }
  Status step(sqlite3_stmt* statement) {
    const int code = sqlite3_step(statement);
    Status status = code == SQLITE_DONE ? Status() : error();
    sqlite3_reset(statement);
    return status;
  }
  Status number(const char* sql, std::int64_t* value) {
    sqlite3_stmt* statement = nullptr;
    KVASIR_RETURN_IF_ERROR(prepare(sql, &statement));
    Status status = sqlite3_step(statement) == SQLITE_ROW ? Status() : error();
    if (status.ok()) *value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return status;
  }

  sqlite3* handle_ = nullptr;
  sqlite3_stmt* put_ = nullptr;
  sqlite3_stmt* remove_ = nullptr;
};

class DiskStore final : public BlobStore {
 public:
  DiskStore(DiskStoreOptions options, int lock, std::unique_ptr<BlobFiles> files)
      : options_(std::move(options)), lock_(lock), files_(std::move(files)) {}
  ~DiskStore() override {
    save_uses();
    catalogue_.close();
    ::close(lock_);
  }

  // Reads the catalogue and removes files that it does not list. Errors: kIo, kResourceExhausted.
  Status load() {
    const std::string path = options_.folder + "/catalogue.db";
    Status opened = catalogue_.open(path);
    Result<std::vector<Catalogue::Row>> rows =
        opened.ok() ? catalogue_.rows() : Result<std::vector<Catalogue::Row>>(opened);
    if (!rows.ok() && rows.status().code() == StatusCode::kDataLoss) {
      warn("the catalogue of prefixes '" + path + "' is damaged (" + rows.status().message() +
           "): begun anew; the old one is '" + path + ".damaged'");
      catalogue_.close();
      ::rename(path.c_str(), (path + ".damaged").c_str());
      for (const char* ending : {"-wal", "-shm"}) ::unlink((path + ending).c_str());
      KVASIR_RETURN_IF_ERROR(catalogue_.open(path));
      rows = catalogue_.rows();
    }
    if (!rows.ok()) return rows.status();
    KVASIR_ASSIGN_OR_RETURN(const auto found, files_->list());
    std::map<std::string, std::uint64_t> files(found.begin(), found.end());
    for (const Catalogue::Row& row : *rows) {
      const auto file = files.find(file_name(row.key.text));
      if (file == files.end() || file->second != row.bytes || index_.contains(row.key.text.hex())) {
        KVASIR_RETURN_IF_ERROR(catalogue_.remove(row.key));
        continue;
      }
      files.erase(file);
      enter(row);
    }
    std::size_t orphans = 0;
    for (const auto& [name, bytes] : files) {
      if (!is_file_name(name)) continue;
      files_->remove(name);
      ++orphans;
    }
    if (orphans > 0) warn(fmt::format("removed {} files of prefixes that were not written to their end", orphans));
    return make_room(0);
  }

  Result<std::vector<std::uint64_t>> sizes(std::span<const BlobKey> keys) override {
    std::vector<std::uint64_t> sizes;
    const std::lock_guard lock(mutex_);
    for (const BlobKey& key : keys) {
      const auto found = find(key);
      sizes.push_back(found != index_.end() ? found->second.bytes : 0);
    }
    return sizes;
  }

  Status read(const BlobKey& key, std::span<std::byte> into) override {
    {
      const std::lock_guard lock(mutex_);
      const auto found = find(key);
      if (found == index_.end() || found->second.bytes != into.size())
        return Status(StatusCode::kNotFound, "the prefix is not on the disk any more");
    }
    Status status = files_->read(file_name(key.text), into);
    if (status.ok()) touch(key);
    return status;
  }

  Status write(const BlobKey& key, std::span<const std::byte> from) override {
    Status status = try_write(key, from);
    if (!status.ok()) remove(key);
    return status;
  }

  void remove(const BlobKey& key) override {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = find(key); found != index_.end()) leave(found);
    }
    static_cast<void>(catalogue_.remove(key));
    files_->remove(file_name(key.text));
  }

  bool answers_at_once() const override { return true; }
  bool usable() const override { return true; }

  void touch(const BlobKey& key) override {
    const std::lock_guard lock(mutex_);
    const auto found = find(key);
    if (found == index_.end()) return;
    Catalogue::Row row = found->second;
    row.used = std::time(nullptr);
    if (row.used == found->second.used) return;
    leave(found);
    enter(row);
    used_.insert(row.key.text.hex());
  }

  BlobUsage usage() const override {
    const std::lock_guard lock(mutex_);
    return {index_.size(), bytes_, options_.capacity};
  }
  std::string_view name() const override { return "disk"; }

 private:
  using Index = std::map<std::string, Catalogue::Row>;  // by BlobKey::text
  using Order = std::tuple<std::int64_t, std::int64_t, std::string>;

  static Order order_of(const Catalogue::Row& row) {
    return {row.used, -std::int64_t{row.key.order}, row.key.text.hex()};
  }
  Index::iterator find(const BlobKey& key) {
    const auto found = index_.find(key.text.hex());
    const bool same =
        found != index_.end() && found->second.key.lineage == key.lineage && found->second.key.salt == key.salt;
    return same ? found : index_.end();
  }
  void enter(const Catalogue::Row& row) {
    bytes_ += row.bytes;
    order_.insert(order_of(row));
    index_.emplace(row.key.text.hex(), row);
  }
  void leave(Index::iterator at) {
    bytes_ -= at->second.bytes;
    order_.erase(order_of(at->second));
    index_.erase(at);
  }

  Status try_write(const BlobKey& key, std::span<const std::byte> from) {
    if (from.size() > options_.capacity) return exhausted("it is larger than all that may be kept");
    remove(key);
    KVASIR_RETURN_IF_ERROR(make_room(from.size()));
    save_uses();
    KVASIR_RETURN_IF_ERROR(files_->write(file_name(key.text), from));
    const Catalogue::Row row{key, from.size(), std::time(nullptr)};
    KVASIR_RETURN_IF_ERROR(catalogue_.put(row));
    const std::lock_guard lock(mutex_);
    enter(row);
    return {};
  }

  // Evicts the least recently used blobs until `bytes` more bytes fit.
  Status make_room(std::uint64_t bytes) {
    for (;;) {
      Catalogue::Row oldest;
      {
        const std::lock_guard lock(mutex_);
        if (bytes_ + bytes <= options_.capacity || order_.empty()) return {};
        const auto found = index_.find(std::get<2>(*order_.begin()));
        oldest = found->second;
        leave(found);
      }
      // If the disk has no room for this change, the next start removes the row without a file.
      static_cast<void>(catalogue_.remove(oldest.key));
      files_->remove(file_name(oldest.key.text));
    }
  }

  // Times of use are written together with the next blob; a kill may lose them.
  void save_uses() {
    std::vector<Catalogue::Row> rows;
    {
      const std::lock_guard lock(mutex_);
      for (const std::string& text : std::exchange(used_, {}))
        if (const auto found = index_.find(text); found != index_.end()) rows.push_back(found->second);
    }
    if (rows.empty() || !catalogue_.run("BEGIN").ok()) return;
    for (const Catalogue::Row& row : rows) static_cast<void>(catalogue_.put(row));
    static_cast<void>(catalogue_.run("COMMIT"));
  }

  void warn(const std::string& line) const {
    if (options_.warn) options_.warn(line);
  }

  const DiskStoreOptions options_;
  const int lock_;
  std::unique_ptr<BlobFiles> files_;
  Catalogue catalogue_;  // of the writing thread, once loaded
  mutable std::mutex mutex_;
  // Below: guarded by mutex_.
  Index index_;
  std::set<Order> order_;
  std::set<std::string> used_;  // texts of blobs used since their row was written
  std::uint64_t bytes_ = 0;
};

// Takes the folder's lock. Errors: kInvalidArgument.
Result<int> lock_folder(const std::string& folder) {
  const std::string path = folder + "/lock";
  const int lock = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0)
    return invalid_argument("cannot write to the folder '{}': {}; give one that can be written", folder,
                            std::strerror(errno));
  if (::flock(lock, LOCK_EX | LOCK_NB) == 0) return lock;
  const int error = errno;
  ::close(lock);
  if (error == EWOULDBLOCK)
    return invalid_argument("another process uses the folder '{}'; give each process a folder of its own", folder);
  return invalid_argument("cannot lock the folder '{}': {}; give one on a local disk", folder, std::strerror(error));
}

}  // namespace

Result<std::unique_ptr<BlobStore>> open_disk_store(const DiskStoreOptions& options, std::unique_ptr<BlobFiles> files) {
  if (::mkdir(options.folder.c_str(), 0700) != 0 && errno != EEXIST)
    return invalid_argument("cannot make the folder '{}': {}; give one in a folder that can be written", options.folder,
                            std::strerror(errno));
  KVASIR_ASSIGN_OR_RETURN(const int lock, lock_folder(options.folder));
  if (files == nullptr) {
    Result<std::unique_ptr<BlobFiles>> opened = open_blob_files(options.folder + "/parts");
    if (!opened.ok()) {
      ::close(lock);
      return opened.status();
    }
    files = std::move(*opened);
  }
  auto store = std::make_unique<DiskStore>(options, lock, std::move(files));
  KVASIR_RETURN_IF_ERROR(store->load());
  return std::unique_ptr<BlobStore>(std::move(store));
}

}  // namespace kvasir
