#include "cli/serve/serve_operations.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

constexpr int kLongestTime = 24 * 3600;
constexpr std::int64_t kMostBytes = std::int64_t{4} << 30;

std::atomic<bool> g_hung_up{false};

void add_seconds(CLI::App& command, const std::string& name, std::chrono::seconds& value, int least,
                 const std::string& help) {
  command
      .add_option_function<int>(
          name, [&value](const int& seconds) { value = std::chrono::seconds(seconds); }, help)
      ->default_str(std::to_string(value.count()))
      ->check(in_range(least, kLongestTime))
      ->type_name("INT");
}

template <class Number>
void add_count(CLI::App& command, const std::string& name, Number& value, std::int64_t most, const std::string& help) {
  command.add_option(name, value, help)->capture_default_str()->check(in_range(1, most));
}

void add_size(CLI::App& command, const std::string& name, std::size_t& value, std::size_t least,
              const std::string& help) {
  add_bytes_option(command, name, value, help)
      ->default_str(std::to_string(value))
      ->check(in_range(static_cast<std::int64_t>(least), kMostBytes));
}

CLI::Validator one_of(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](std::string& text) -> std::string {
        if (std::ranges::find(words, text) != words.end()) return "";
        return fmt::format("'{}' is unknown; there are: {}", printable(text, 40), fmt::join(words, ", "));
      },
      "");
}

void add_limits(CLI::App& command, server::HttpLimits& limits) {
  add_size(command, "--max-header", limits.header_bytes, 1024,
           "Bytes of a request's line and header; more is answered with 431");
  add_count(command, "--max-header-fields", limits.header_fields, 10'000,
            "Fields of a header; more are answered with 431");
  add_size(command, "--max-body", limits.body_bytes, 1024, "Bytes of a request's body; more are answered with 413");
  add_size(command, "--max-unread", limits.queued_bytes, 4096,
           "Bytes of a stream that wait for its reader, beside those in the kernel's buffer; more end the connection "
           "and its request");
  add_count(command, "--max-connections", limits.connections, 1'000'000,
            "Open connections; one more takes the place of the one longest without a request, or gets 503");
  add_count(command, "--max-connections-per-address", limits.connections_per_address, 1'000'000,
            "Open connections from one client address");
  add_seconds(command, "--header-timeout", limits.header_time, 1, "Seconds that a request's header may take");
  add_seconds(command, "--body-timeout", limits.body_grace, 1,
              "Seconds over which a request's body must come at --body-rate");
  add_count(command, "--body-rate", limits.body_rate, std::int64_t{1} << 30, "Least bytes a second of a body");
  add_seconds(command, "--write-timeout", limits.write_stall, 1,
              "Seconds that a client may take nothing of its answer");
  add_seconds(command, "--keep-alive", limits.keep_alive, 1,
              "Seconds that a connection may stay open between requests");
  add_seconds(command, "--heartbeat", limits.heartbeat, 1,
              "Seconds between comments in a stream that has nothing to say");
}

// Returns whether other machines cannot reach a ZeroMQ endpoint.
bool stays_here(std::string_view endpoint) {
  if (!endpoint.starts_with("tcp://")) return true;
  endpoint.remove_prefix(6);
  return endpoint.starts_with("127.") || endpoint.starts_with("localhost:") || endpoint.starts_with("[::1]:");
}

}  // namespace

CLI::Validator in_range(std::int64_t least, std::int64_t most) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        std::int64_t value = 0;
        if (!CLI::detail::lexical_cast(text, value) || (value >= least && value <= most)) return "";
        return fmt::format("'{}' is out of range ({} to {})", printable(text, 40), least, most);
      },
      "");
}

void add_operations_options(CLI::App& command, OperationsOptions& options) {
  add_seconds(command, "--queue-timeout", options.queue_timeout, 0,
              "Seconds that a request may wait for its first pass, then it is answered with 503; 0: for ever");
  command.option_defaults()->group("Limits");
  add_limits(command, options.limits);
  command.option_defaults()->group("Logs and metrics");
  command.add_option("--log-file", options.log.file, "Log file, opened again on SIGHUP; default: standard error")
      ->type_name("FILE");
  command.add_option("--log-format", options.log_format, "Lines of the log: text or json")
      ->check(one_of({"text", "json"}))
      ->capture_default_str();
  command
      .add_option("--log-level", options.log_level,
                  "Least that is logged: debug, info, warning or error; default: info, with --quiet error")
      ->check(one_of({"debug", "info", "warning", "error"}));
  command.add_flag("--vllm-metrics", options.vllm_metrics, "Write metrics under vLLM's names too");
  command.add_flag("--metrics-open", options.metrics_open,
                   "Let anybody read /metrics where there are API keys; otherwise it needs an operator's key");
  command.option_defaults()->group("Options");
}

Result<std::unique_ptr<server::Log>> open_log(const OperationsOptions& options) {
  server::LogOptions log = options.log;
  log.json = options.log_format == "json";
  const std::string level = !options.log_level.empty() ? options.log_level : options.quiet ? "error" : "info";
  log.level = server::log_level_of(level).value_or(log.level);
  return server::Log::open(log);
}

void allow_descriptors(const OperationsOptions& options) {
  // Besides connections: the model, the log, the usage database, sessions being saved, and the libraries' own.
  const rlim_t wanted = static_cast<rlim_t>(options.limits.connections) + 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  note(
      "kvasir: the process may open {} files, fewer than {} connections need, so clients may have to wait; raise the "
      "limit (ulimit -n), or lower --max-connections\n",
      limit.rlim_cur, options.limits.connections);
}

void catch_hang_up(const OperationsOptions& options) {
  if (options.log.file.empty()) return;
  struct sigaction action {};
  action.sa_handler = [](int) { g_hung_up.store(true); };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGHUP, &action, nullptr);
}

bool hung_up() {
  return g_hung_up.exchange(false);
}

void notify_manager(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return;
  sockaddr_un address{};
  const std::size_t size = std::strlen(path);
  if (size >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path, size);
  if (path[0] == '@') address.sun_path[0] = '\0';  // an abstract socket name
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return;
  // Ignores failures: a server also works without a service manager.
  [[maybe_unused]] const ssize_t sent = ::sendto(socket, state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                                                 reinterpret_cast<const sockaddr*>(&address),
                                                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size));
  ::close(socket);
}

Result<std::unique_ptr<server::KvEvents>> open_events(server::KvEventOptions options, const std::string& model) {
  if (options.endpoint.empty()) {
    if (options.replay.empty() && options.topic.empty()) return std::unique_ptr<server::KvEvents>();
    return invalid_argument("KV events are published only with --kv-events, for example tcp://127.0.0.1:5557");
  }
  if (options.topic.empty()) options.topic = server::default_kv_topic(model);
  KVASIR_ASSIGN_OR_RETURN(auto events, server::KvEvents::open(options));
  note("kvasir: KV events at {}, replay at {}, topic {}\n", events->endpoint(),
       options.replay.empty() ? "no address" : events->replay_endpoint(), printable(options.topic, 200));
  if (!stays_here(options.endpoint) || !stays_here(options.replay))
    note("kvasir: KV events hold the tokens of prompts, and whoever reaches their addresses can read them\n");
  return events;
}

void SwapWatch::look(const SwapReport& swap, server::Log& log) {
  if (swap.failed < failed_) failed_ = 0;  // the model was loaded again
  const auto now = std::chrono::steady_clock::now();
  if (swap.failed <= failed_ || now < next_) return;
  log.write(server::LogLevel::kWarning, "swap_failed",
            {{"requests", swap.failed - failed_}, {"message", swap.why_failed}});
  failed_ = swap.failed;
  next_ = now + std::chrono::minutes(1);
}

}  // namespace kvasir::cli
