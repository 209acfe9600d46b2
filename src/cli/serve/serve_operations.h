// Options and reports for operators of `kvasir serve`: HTTP limits, logs, metrics, and the service manager.
// Thread-safety: main thread only, which is also the I/O thread.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kvasir/engine.h"
#include "kvasir/status.h"
#include "server/admin/log.h"
#include "server/admin/metrics.h"
#include "server/http/http_server.h"
#include "server/kv_events/kv_events.h"

namespace kvasir::cli {

struct OperationsOptions {
  server::HttpLimits limits;
  std::chrono::seconds queue_timeout{0};
  server::LogOptions log;
  std::string log_format = "text";
  std::string log_level;  // empty: info, or error if `quiet`
  bool quiet = false;     // --quiet was given
  bool metrics_open = false;
  bool vllm_metrics = false;
};

// Checks that a number is in a range. Leaves non-numbers to check_values (cli/values.h).
CLI::Validator in_range(std::int64_t least, std::int64_t most);

void add_operations_options(CLI::App& command, OperationsOptions& options);

// Opens the log that the options describe. Errors: kInvalidArgument for an unknown format or level; those of Log::open.
Result<std::unique_ptr<server::Log>> open_log(const OperationsOptions& options);

// Raises the limit on open files to the connections' needs, if the system allows it; else prints a note.
void allow_descriptors(const OperationsOptions& options);

// Makes SIGHUP reopen the log file, if there is one: hung_up() returns true once after each. Call it after
// catch_interrupts().
void catch_hang_up(const OperationsOptions& options);
bool hung_up();

// Opens the publisher of a model's KV events, and says where it is. Returns null if no events are wanted. Errors:
// kInvalidArgument.
Result<std::unique_ptr<server::KvEvents>> open_events(server::KvEventOptions options, const std::string& model);

// Logs that pages of one engine could not be swapped: the first time, then once a minute at most.
class SwapWatch {
 public:
  void look(const SwapReport& swap, server::Log& log);

 private:
  std::int64_t failed_ = 0;  // failures already logged
  std::chrono::steady_clock::time_point next_;
};

// Reports a state such as "READY=1" to systemd, or the program that set NOTIFY_SOCKET; without it does nothing.
void notify_manager(std::string_view state);

}  // namespace kvasir::cli
