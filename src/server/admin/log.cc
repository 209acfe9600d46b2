#include "server/admin/log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <poll.h>
#include <unistd.h>

#define SPDLOG_FMT_EXTERNAL
#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/sink.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/mapped_file.h"
#include "base/status.h"

namespace kvasir::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::pair<LogLevel, std::string_view> kLevels[] = {{LogLevel::kDebug, "debug"},
                                                             {LogLevel::kInfo, "info"},
                                                             {LogLevel::kWarning, "warning"},
                                                             {LogLevel::kError, "error"}};
constexpr std::chrono::milliseconds kWaitToWrite{100};
constexpr std::chrono::seconds kTimeToClose{1};
constexpr std::size_t kPipeBytes = 4096;  // bytes that a pipe takes without blocking if poll() finds it writable

std::string now_text() {
  const auto now = std::chrono::system_clock::now();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)), ms);
}

std::string quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

bool is_plain(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-_./:+,").find(c) != std::string_view::npos;
  });
}

std::string value_text(bool json, const LogField& field) {
  if (const auto* number = std::get_if<std::int64_t>(&field.value)) return std::to_string(*number);
  if (const auto* seconds = std::get_if<double>(&field.value)) return fmt::format("{:.6f}", *seconds);
  const std::string_view text = std::get<std::string_view>(field.value);
  std::string out = !json && is_plain(text) ? std::string(text) : quoted(text);
  // JSON does not escape DEL.
  for (std::size_t at = out.find('\x7f'); at != std::string::npos; at = out.find('\x7f', at))
    out.replace(at, 1, "\\u007f");
  return out;
}

Result<int> open_file(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a reader fails instead of waiting.
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0640);
  if (file < 0) return errno_status("open the log file", path);
  return file;
}

// Writes lines to a descriptor without waiting for long. log() runs on the log's thread, the rest on any.
class Sink final : public spdlog::sinks::sink {
 public:
  Sink(std::string path, int file) : path_(std::move(path)), file_(file) {}
  ~Sink() override {
    if (!path_.empty()) ::close(file_);
  }

  void log(const spdlog::details::log_msg& message) override {
    if (reopen_.exchange(false)) open_again();
    line_.assign(message.payload.data(), message.payload.size());
    line_ += '\n';
    if (!write_line()) dropped_.fetch_add(1);
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

  void reopen() { reopen_ = !path_.empty(); }
  void close_at(Clock::time_point deadline) { deadline_ = deadline.time_since_epoch().count(); }
  std::uint64_t dropped() const { return dropped_.load(); }

 private:
  void open_again() {
    const Result<int> file = open_file(path_);
    if (!file.ok()) return void(dropped_.fetch_add(1));  // goes on with the old file
    ::close(file_);
    file_ = *file;
  }

  bool is_late() const { return Clock::now().time_since_epoch().count() >= deadline_.load(); }

  bool write_line() {
    std::string_view rest = line_;
    while (!rest.empty()) {
      pollfd ready{file_, POLLOUT, 0};
      const int events = ::poll(&ready, 1, is_late() ? 0 : static_cast<int>(kWaitToWrite.count()));
      if (events <= 0) {
        if (is_late() || (events < 0 && errno != EINTR)) return false;
        continue;
      }
      const ssize_t written = ::write(file_, rest.data(), std::min(rest.size(), kPipeBytes));
      if (written < 0 && (errno == EINTR || errno == EAGAIN) && !is_late()) continue;
      if (written <= 0) return false;
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
  }

  const std::string path_;
  int file_;
  std::string line_;
  std::atomic<bool> reopen_{false};
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<Clock::rep> deadline_{Clock::time_point::max().time_since_epoch().count()};
};

class LogImpl final : public Log {
 public:
  LogImpl(const LogOptions& options, std::shared_ptr<Sink> sink)
      : json_(options.json),
        level_(options.level),
        sink_(std::move(sink)),
        pool_(std::make_shared<spdlog::details::thread_pool>(options.queue, 1)),
        logger_(std::make_shared<spdlog::async_logger>("kvasir", sink_, pool_,
                                                       spdlog::async_overflow_policy::overrun_oldest)) {
    logger_->set_error_handler([](const std::string&) {});  // The default handler writes to standard error.
  }
  ~LogImpl() override {
    sink_->close_at(Clock::now() + kTimeToClose);
    pool_.reset();
  }

  void write(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) override {
    if (!writes(level)) return;
    const std::string line = log_line(json_, now_text(), level, event, {fields.begin(), fields.size()});
    logger_->log(spdlog::level::info, spdlog::string_view_t(line.data(), line.size()));
  }
  bool writes(LogLevel level) const override { return level >= level_; }
  void reopen() override {
    sink_->reopen();
    write(LogLevel::kInfo, "log_reopened", {});
  }
  std::uint64_t dropped() const override { return sink_->dropped() + pool_->overrun_counter(); }

 private:
  const bool json_;
  const LogLevel level_;
  const std::shared_ptr<Sink> sink_;
  std::shared_ptr<spdlog::details::thread_pool> pool_;
  const std::shared_ptr<spdlog::async_logger> logger_;
};

}  // namespace

std::string_view log_level_name(LogLevel level) {
  return std::ranges::find(kLevels, level, &std::pair<LogLevel, std::string_view>::first)->second;
}

std::optional<LogLevel> log_level_of(std::string_view name) {
  for (const auto& [level, word] : kLevels)
    if (word == name) return level;
  return std::nullopt;
}

std::string log_line(bool json, std::string_view time, LogLevel level, std::string_view event,
                     std::span<const LogField> fields) {
  std::string line = json
                         ? fmt::format(R"({{"time":"{}","level":"{}","event":"{}")", time, log_level_name(level), event)
                         : fmt::format("{} {} {}", time, log_level_name(level), event);
  for (const LogField& field : fields)
    line += fmt::format(fmt::runtime(json ? ",\"{}\":{}" : " {}={}"), field.name, value_text(json, field));
  return json ? line + "}" : line;
}

Result<std::unique_ptr<Log>> Log::open(const LogOptions& options) {
  int file = STDERR_FILENO;
  if (!options.file.empty()) {
    KVASIR_ASSIGN_OR_RETURN(file, open_file(options.file));
  }
  return {std::unique_ptr<Log>(std::make_unique<LogImpl>(options, std::make_shared<Sink>(options.file, file)))};
}

void RequestLog::on_refused(std::string_view reason, std::string_view address, std::string_view path) {
  log_.write(LogLevel::kInfo, "refused", {{"reason", reason}, {"address", address}, {"path", path}});
}

void RequestLog::on_fault(const RequestRecord& record, int http, std::string_view why) {
  log_.write(LogLevel::kError, "failed",
             {{"id", record.id},
              {"request_id", record.request_id},
              {"tenant", record.tenant},
              {"session", record.session},
              {"http", http},
              {"message", why}});
}
void RequestLog::on_finished(const RequestRecord& record) {
  const bool failed = record.finish_reason == "error" || record.finish_reason == "shutdown";
  log_.write(failed ? LogLevel::kWarning : LogLevel::kInfo, "request",
             {{"id", record.id},
              {"request_id", record.request_id},
              {"path", record.path},
              {"tenant", record.tenant},
              {"http", record.http},
              {"finish_reason", record.finish_reason},
              {"policy", record.policy},
              {"samples", record.samples},
              {"prompt_tokens", record.prompt_tokens},
              {"cached_tokens", record.cached_tokens},
              {"generated_tokens", record.generated_tokens},
              {"preemptions", record.preemptions},
              {"queue_s", record.queue_seconds},
              {"first_token_s", record.first_token_seconds},
              {"prefill_s", record.prefill_seconds},
              {"decode_s", record.decode_seconds},
              {"total_s", record.total_seconds}});
}

}  // namespace kvasir::server
