// The server's log: one line per event, as text or JSON, to standard error or a file.
//
// A line is put into a bounded queue and written by the log's own thread, so a reader that takes nothing or a full disk
// delays nobody. When the queue is full the oldest line is dropped and counted.
//
// Values may come from clients. They are written as JSON strings in ASCII, so they cannot put a line break, control
// character or terminal sequence into a line. The log contains no prompt and no answer.
//
// Thread-safety: any thread may call.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "kvasir/status.h"
#include "server/admin/traffic.h"

namespace kvasir::server {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Returns "debug", "info", "warning" or "error".
std::string_view log_level_name(LogLevel level);
std::optional<LogLevel> log_level_of(std::string_view name);

struct LogField {
  std::string_view name;
  std::variant<std::string_view, std::int64_t, double> value;  // double: seconds, written with microseconds
};

// Returns an event as a line without its end. `time`: as RFC 3339. Text is "TIME LEVEL EVENT NAME=VALUE...", with
// quotes around values that are not plain words. JSON is an object with "time", "level", "event" and the fields.
std::string log_line(bool json, std::string_view time, LogLevel level, std::string_view event,
                     std::span<const LogField> fields);

struct LogOptions {
  std::string file;  // empty: standard error
  bool json = false;
  LogLevel level = LogLevel::kInfo;  // lines below are not written
  std::size_t queue = 4096;          // lines
};

class Log {
 public:
  // Errors: kInvalidArgument or kIo if the file cannot be opened.
  static Result<std::unique_ptr<Log>> open(const LogOptions& options);
  // Writes the queued lines, for at most a second.
  virtual ~Log() = default;

  virtual void write(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {}) = 0;
  virtual bool writes(LogLevel level) const = 0;
  // Closes the file and opens one of the same name, for example after it was renamed. No effect without a file.
  virtual void reopen() = 0;
  // The number of lines dropped because the queue was full or the system refused the write.
  virtual std::uint64_t dropped() const = 0;
};

// Writes a line for each request that has ended or was refused.
class RequestLog final : public TrafficObserver {
 public:
  // `log` must outlive this.
  explicit RequestLog(Log& log) : log_(log) {}
  void on_refused(std::string_view reason, std::string_view address, std::string_view path) override;
  void on_fault(const RequestRecord& record, int http, std::string_view why) override;
  void on_finished(const RequestRecord& record) override;

 private:
  Log& log_;
};

}  // namespace kvasir::server
